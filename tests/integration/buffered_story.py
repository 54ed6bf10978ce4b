"""An asynchronous run, in which results count in rounds after the one they began in.

A round takes one result. Two devices; who comes when is settled, so that it comes to the same:

    round 1   a and b begin. a hands in, and begins anew in round 2
    round 2   b hands in what it began in round 1, and begins anew in round 3
    round 3   a hands in what it began in round 2. b comes after the end, and is told so
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from hfmds.algorithm.engine import LocalWork, Progress
from hfmds.algorithm.recipes import Normalisation, Recipe
from hfmds.wire.types import Asynchronous, RoundPolicy, RunSpec
from tests.integration.operator_at_work import Operator, Outcome
from tests.integration.scripted_devices import MODEL, Call, ScriptedDevice, meddle_not
from tests.integration.story import PATIENCE_SECONDS, SECONDS
from tests.integration.witness import Witness

_SPEC = RunSpec(
    Recipe(MODEL, Normalisation((0.5,), (0.5,)), rounds=3, seed=7),
    RoundPolicy(
        minimum_devices=1,
        deadline_seconds=600.0,
        lease_seconds=PATIENCE_SECONDS,
        asynchronous=Asynchronous(buffer_size=1),
    ),
)

_AFTER = {("a", 1): ("b", 1), ("b", 1): ("a", 2), ("a", 2): ("b", 3)}
"""A device hands in what it began in a round after another one has begun in a round."""


class BufferedStory:
    """Told as `Story` is."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        self._coordinator = coordinator
        self._begun = {begun: threading.Event() for begun in (*_AFTER, *_AFTER.values())}
        self._completed = asyncio.Event()
        self._witness = Witness()
        meddlers = {"a": meddle_not, "b": self._after_the_end}
        self._devices = [
            ScriptedDevice(
                name,
                folder,
                coordinator,
                store,
                script=partial(self._in_turn, name),
                meddler=self._witness.of(name, meddlers[name]),
            )
            for name in "ab"
        ]

    async def tell(self) -> Outcome:
        """What the run came to."""
        async with (
            asyncio.timeout(SECONDS),
            Operator.of(self._coordinator) as operator,
            AsyncExitStack() as stack,
        ):
            for device in self._devices:
                await stack.enter_async_context(device.working())
            await operator.create(_SPEC)
            outcome = await operator.outcome()
            self._completed.set()
            await operator.until(lambda: bool(self._witness.late))
            assert self._witness.late == [("b", "completed")]
            assert await operator.accepted() == [(1, "a"), (1, "b"), (2, "a")]
            self._witness.require_sound()
            return outcome

    def _in_turn(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        begun = device_id, work.round_number
        self._begun[begun].set()
        while begun in _AFTER and not self._begun[_AFTER[begun]].wait(0.01):
            progress(1, 2)

    async def _after_the_end(self, call: Call) -> object:
        if call.method == "submit_update" and self._begun["b", 3].is_set():
            await self._completed.wait()
        return await call()
