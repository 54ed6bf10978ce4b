"""A round that wants two results of three devices: c hands in when a and b have, and is late.

After it, somebody keeps the books of the fleet.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from hfmds.algorithm.recipes import Normalisation, Recipe
from hfmds.wire.types import RoundPolicy, RunSpec
from tests.integration.bookkeeping import keep_books
from tests.integration.operator_at_work import Operator, Outcome
from tests.integration.scripted_devices import MODEL, Call, ScriptedDevice, meddle_not
from tests.integration.story import PATIENCE_SECONDS, SECONDS
from tests.integration.witness import Witness

_SPEC = RunSpec(
    Recipe(MODEL, Normalisation((0.5,), (0.5,)), rounds=1, seed=9, cohort_size=2),
    RoundPolicy(
        minimum_devices=2,
        deadline_seconds=600.0,
        lease_seconds=PATIENCE_SECONDS,
        over_selection=1.5,
    ),
)


class LateStory:
    """Told as `Story` is."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        self._coordinator = coordinator
        self._store = store
        self._witness = Witness()
        meddlers = {"a": meddle_not, "b": meddle_not, "c": self._after_the_others}
        self._devices = [
            ScriptedDevice(
                name, folder, coordinator, store, meddler=self._witness.of(name, meddler)
            )
            for name, meddler in meddlers.items()
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
            outcome = await operator.outcome()
            await operator.until(lambda: bool(self._witness.late))
            assert self._witness.late == [("c", "goal-reached")]
            assert sorted(await operator.accepted()) == [(1, "a"), (1, "b")]
            self._witness.require_sound()
            await keep_books(self._coordinator, self._store)
            return outcome

    async def _after_the_others(self, call: Call) -> object:
        if call.method == "submit_update":
            while len(self._witness.taken) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return await call()
