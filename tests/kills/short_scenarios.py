"""Stories of one run each, in kinds of rounds that `tests.kills.full_scenario` has no place for.

Told as that one is: whoever is killed on the way, it must come to the same.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from hfmds.algorithm.local_work import LocalWork, Progress
from hfmds.domain.recipe import Normalisation, Recipe
from hfmds.domain.round_policy import Asynchronous, RoundPolicy
from hfmds.domain.runs import Phase, RunSpec, RunState
from hfmds.errors import InvalidInput
from tests.kills.crash_points import held
from tests.kills.fleet_changes import keep_books
from tests.kills.full_scenario import PATIENCE_SECONDS, SECONDS
from tests.kills.lost_results import Witness
from tests.support.operator import Operator, Outcome
from tests.support.scripted_devices import MODEL, Call, ScriptedDevice
from tests.support.waiting import eventually

_NORMALISATION = Normalisation((0.5,), (0.5,))
_UNWELL = "device c is not well today"


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
            await eventually(partial(self._are_seen, operator))
            await operator.create(self.spec)
            await self.meanwhile(operator)
            outcome = await operator.outcome()
            await self.afterwards(operator)
            self.witness.require_sound()
            return outcome

    async def _are_seen(self, operator: Operator) -> bool:
        return len(await operator.devices()) == len(self._devices)

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        """What a device does before its work, in a thread; raising gives the task up."""

    async def call(self, device_id: str, call: Call) -> object:
        """Makes a call of a device, when its time has come."""
        return await call()

    async def meanwhile(self, operator: Operator) -> None:
        """What the operator does while the run goes on."""

    async def afterwards(self, operator: Operator) -> None:
        """What happens when the run is completed, while the devices are still there."""


def _wait(so: threading.Event, progress: Progress) -> None:
    """In a device's work: wait, as long as the result is wanted."""
    while not so.wait(0.01):
        progress(1, 2)


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
            await eventually(lambda: len(self.witness.taken) >= 2)
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
        if begun in self.after:
            _wait(self._begun[self.after[begun]], progress)

    async def call(self, device_id: str, call: Call) -> object:
        if call.method == "submit_update" and device_id == "b" and self._begun["b", 3].is_set():
            await self._completed.wait()
        return await call()

    async def afterwards(self, operator: Operator) -> None:
        self._completed.set()
        await operator.until(lambda: bool(self.witness.late))
        assert self.witness.late == [("b", "completed")]
        assert await operator.accepted() == [(1, "a"), (1, "b"), (2, "a")]


class ChancesStory(ShortStory):
    """Devices that failed, and that were too slow, are given another chance when a run is resumed.

    round 1   c gives its task up and leaves; a and b are enough
    round 2   b is too slow, and nobody can take its place: the run is paused. The operator resumes
              it. What c did is no longer held against it; b has its task again, and does it
    """

    devices = "abc"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=2, seed=15),
        RoundPolicy(
            minimum_devices=2,
            deadline_seconds=600.0,
            lease_seconds=PATIENCE_SECONDS,
            task_deadline_seconds=PATIENCE_SECONDS,
        ),
    )

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._c_is_gone = threading.Event()
        self._b_was_slow = threading.Event()

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        match device_id, work.round_number:
            case "a", 1:
                _wait(self._c_is_gone, progress)  # which would be asked in place of b
            case "b", 2 if not self._b_was_slow.is_set():
                try:
                    _wait(threading.Event(), progress)
                finally:
                    self._b_was_slow.set()
            case "c", _:
                raise InvalidInput(_UNWELL)

    async def meanwhile(self, operator: Operator) -> None:
        await operator.until_seen("c", lambda device: device.last_failure == _UNWELL)
        await self._devices["abc".index("c")].leave()
        self._c_is_gone.set()
        assert "longer than policy.task_deadline_seconds" in await operator.until_paused()
        await eventually(self._b_was_slow.is_set)  # b must not continue with its old task
        await operator.resume()


class InterruptedStory(ShortStory):
    """An operator pauses runs at any time, cancels one that is paused, and deletes what is done.

    The other run begins when both devices are at work in round 1 of this one:

        round 1   a hands in, and begins the other run's task, which b cannot do yet. The operator
                  pauses that run, resumes it, pauses it again and cancels it. b hands in
        round 2   the operator pauses the run when its last model is there, but not recorded. It
                  completes all the same, unless the coordinator dies before: then it stays paused,
                  and the operator resumes it and does the same again
        after it  the operator deletes the run
    """

    devices = "ab"
    spec = RunSpec(
        Recipe(MODEL, _NORMALISATION, rounds=2, seed=17),
        RoundPolicy(minimum_devices=2, deadline_seconds=600.0, lease_seconds=PATIENCE_SECONDS),
    )
    _other = replace(spec, recipe=replace(spec.recipe, seed=19))

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        super().__init__(folder, coordinator, store)
        self._hold = held(folder, "RunRecords.complete_round")
        self._begun: set[tuple[str, int]] = set()
        self._other_is_begun = threading.Event()
        self._may_end = {1: {one: threading.Event() for one in "ab"}, 2: {"a": threading.Event()}}

    def before_work(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        if work.recipe.seed == self._other.recipe.seed:
            self._other_is_begun.set()
            _wait(threading.Event(), progress)
        self._begun.add((device_id, work.round_number))
        if device_id in self._may_end[work.round_number]:
            _wait(self._may_end[work.round_number][device_id], progress)

    async def meanwhile(self, operator: Operator) -> None:
        await operator.until(lambda: self._begun == {("a", 1), ("b", 1)})
        await operator.create(self._other, "other")
        await operator.until_in(Phase.TRAINING, run_id="other")
        self._may_end[1]["a"].set()
        await operator.until(self._other_is_begun.is_set)
        await operator.pause("other")
        await operator.resume("other")
        await operator.pause("other")
        [funnel] = await operator.funnels("other")
        assert (funnel.assigned, funnel.taken, funnel.pending) == (2, 1, 2)
        await operator.cancel("other")
        self._may_end[1]["b"].set()
        await operator.until(lambda: ("a", 2) in self._begun)
        self._hold.touch()
        self._may_end[2]["a"].set()
        while not await self._completes_while_paused(operator):
            self._hold.touch()
            await operator.resume()

    async def _completes_while_paused(self, operator: Operator) -> bool:
        await operator.until_in(Phase.EVALUATING, round_number=2)  # then nothing can stop it
        await operator.pause()
        self._hold.unlink()
        await eventually(partial(self._makes_no_progress, operator))
        # It has come to its end, or somebody else is at work, who waits.
        return (await operator.run()).state is RunState.COMPLETED

    async def _makes_no_progress(self, operator: Operator) -> bool:
        return (await operator.run()).progress is None

    async def afterwards(self, operator: Operator) -> None:
        assert await operator.told("other") == ["run-created", "run-cancelled"]
        await operator.delete("run")
        assert await operator.told("run") == ["run-created", "run-completed", "run-deleted"]
