"""Stories of one run each, in kinds of rounds that `tests.integration.story` has no place for.

Told as that one is: whoever is killed on the way, it must come to the same.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

from hfmds.algorithm.engine import LocalWork, Progress
from hfmds.algorithm.recipes import Normalisation, Recipe
from hfmds.wire.types import Asynchronous, RoundPolicy, RunSpec
from tests.integration.bookkeeping import keep_books
from tests.integration.operator_at_work import Operator, Outcome
from tests.integration.scripted_devices import MODEL, Call, ScriptedDevice
from tests.integration.story import PATIENCE_SECONDS, SECONDS
from tests.integration.witness import Witness

_NORMALISATION = Normalisation((0.5,), (0.5,))


class ShortStory:
    """Devices come, a run is created and ends; what a subclass says happens meanwhile."""

    devices: ClassVar[str]
    spec: ClassVar[RunSpec]

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        self.coordinator = coordinator
        self.store = store
        self.witness = Witness()
        self._devices = [
            ScriptedDevice(
                name,
                folder,
                coordinator,
                store,
                script=partial(self.before_work, name),
                meddler=self.witness.of(name, partial(self.call, name)),
            )
            for name in self.devices
        ]

    async def tell(self) -> Outcome:
        """What the run came to."""
        async with (
            asyncio.timeout(SECONDS),
            Operator.of(self.coordinator) as operator,
            AsyncExitStack() as stack,
        ):
            for device in self._devices:
                await stack.enter_async_context(device.working())
            while len(await operator.devices()) < len(self._devices):  # noqa: ASYNC110
                await asyncio.sleep(0.03)
            await operator.create(self.spec)
            outcome = await operator.outcome()
            await self.afterwards(operator)
            self.witness.require_sound()
            return outcome

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        """What a device does before its work, in a thread; raising gives the task up."""

    async def call(self, device_id: str, call: Call) -> object:
        """Makes a call of a device, when its time has come."""
        return await call()

    async def afterwards(self, operator: Operator) -> None:
        """What happens when the run is completed, while the devices are still there."""


class HastyStory(ShortStory):
    """One device is too slow, so that another one is asked in its place.

    One of e and f is asked, and dawdles until its time is up; the other one does the work.
    """

    devices = "ef"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=1, seed=3, cohort_size=1),
        RoundPolicy(
            minimum_devices=1,
            lease_seconds=PATIENCE_SECONDS,
            task_deadline_seconds=PATIENCE_SECONDS,
            over_selection=1.0,
        ),
    )
    _dawdler = ""

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        self._dawdler = self._dawdler or device_id
        while device_id == self._dawdler:
            progress(1, 2)  # raises once nobody wants the result any more
            time.sleep(0.01)


class LateStory(ShortStory):
    """A round wants two results of three devices: c hands in when a and b have, and is late.

    After it, somebody keeps the books of the fleet.
    """

    devices = "abc"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=1, seed=9, cohort_size=2),
        RoundPolicy(
            minimum_devices=2,
            deadline_seconds=600.0,
            lease_seconds=PATIENCE_SECONDS,
            over_selection=1.5,
        ),
    )

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._c_is_ready = asyncio.Event()

    async def call(self, device_id: str, call: Call) -> object:
        if call.method == "submit_update" and device_id == "c":
            self._c_is_ready.set()
            while len(self.witness.taken) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        elif call.method == "submit_update":
            await self._c_is_ready.wait()  # or its upload would be late already
        return await call()

    async def afterwards(self, operator: Operator) -> None:
        await operator.until(lambda: bool(self.witness.late))
        assert self.witness.late == [("c", "goal-reached")]
        assert sorted(await operator.accepted()) == [(1, "a"), (1, "b")]
        await keep_books(self.coordinator, self.store)


class BufferedStory(ShortStory):
    """An asynchronous run, in which results count in rounds after the one they began in.

    A round takes one result. Who comes when is settled, so that it comes to the same:

        round 1   a and b begin. a hands in, and begins anew in round 2
        round 2   b hands in what it began in round 1, and begins anew in round 3
        round 3   a hands in what it began in round 2. b comes after the end, and is told so
    """

    devices = "ab"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=3, seed=7),
        RoundPolicy(
            minimum_devices=1,
            deadline_seconds=600.0,
            lease_seconds=PATIENCE_SECONDS,
            asynchronous=Asynchronous(buffer_size=1),
        ),
    )
    after: ClassVar = {("a", 1): ("b", 1), ("b", 1): ("a", 2), ("a", 2): ("b", 3)}
    """A device hands in what it began in a round after another one has begun in a round."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._begun = {begun: threading.Event() for begun in (*self.after, *self.after.values())}
        self._completed = asyncio.Event()

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        begun = device_id, work.round_number
        self._begun[begun].set()
        while begun in self.after and not self._begun[self.after[begun]].wait(0.01):
            progress(1, 2)

    async def call(self, device_id: str, call: Call) -> object:
        if call.method == "submit_update" and device_id == "b" and self._begun["b", 3].is_set():
            await self._completed.wait()
        return await call()

    async def afterwards(self, operator: Operator) -> None:
        self._completed.set()
        await operator.until(lambda: bool(self.witness.late))
        assert self.witness.late == [("b", "completed")]
        assert await operator.accepted() == [(1, "a"), (1, "b"), (2, "a")]
