"""A run in which one device is too slow, so that another one is asked in its place.

Apart from `tests.integration.story`, because the time that a task may take has to pass.

One of e and f is asked, and dawdles until its time is up; the other one does the work.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from hfmds.algorithm.engine import LocalWork, Progress
from hfmds.algorithm.recipes import Normalisation, Recipe
from hfmds.wire.types import RoundPolicy, RunSpec
from tests.integration.operator_at_work import Operator, Outcome
from tests.integration.scripted_devices import MODEL, ScriptedDevice
from tests.integration.story import PATIENCE_SECONDS, SECONDS

_SPEC = RunSpec(
    Recipe(MODEL, Normalisation((0.5,), (0.5,)), rounds=1, seed=3, cohort_size=1),
    RoundPolicy(
        minimum_devices=1,
        lease_seconds=PATIENCE_SECONDS,
        task_deadline_seconds=PATIENCE_SECONDS,
        over_selection=1.0,
    ),
)


class HastyStory:
    """Told as `Story` is."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        self._coordinator = coordinator
        self._dawdler = ""
        self._devices = [
            ScriptedDevice(name, folder, coordinator, store, script=partial(self._dawdle, name))
            for name in "ef"
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
            while len(await operator.devices()) < len(self._devices):  # noqa: ASYNC110
                await asyncio.sleep(0.03)
            await operator.create(_SPEC)
            return await operator.outcome()

    def _dawdle(self, device_id: str, work: LocalWork, progress: Progress) -> None:
        self._dawdler = self._dawdler or device_id
        while device_id == self._dawdler:
            progress(1, 2)  # raises once nobody wants the result any more
            time.sleep(0.01)
