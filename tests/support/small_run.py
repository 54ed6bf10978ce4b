"""A small run for tests of faults: two devices, three rounds, each with a refresh.

Each task depends on what the device remembers of the last one of its kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec
from tests.support.operator import Operator, Outcome
from tests.support.scripted_devices import MODEL, Meddler, ScriptedDevice, meddle_not
from tests.support.supervision import Launcher, servers

SECONDS = 60.0
"""How long the run may take; undisturbed it takes less than one."""

TASKS = 6
"""How many a device has: it synthesises and trains, three times."""


@dataclass(frozen=True)
class Stage:
    """The servers with the run created, waiting for devices a and b."""

    folder: Path
    model: ModelSpec
    coordinator: str
    store: str
    operator: Operator

    def device(
        self,
        device_id: str,
        meddler: Meddler = meddle_not,
        coordinator: str = "",
        store: str = "",
    ) -> ScriptedDevice:
        """A device, which may reach the servers at other addresses."""
        addresses = coordinator or self.coordinator, store or self.store
        return ScriptedDevice(device_id, self.folder, *addresses, model=self.model, meddler=meddler)

    async def outcome(
        self, *devices: ScriptedDevice, until: Callable[[], bool] = lambda: True
    ) -> Outcome:
        """What the run comes to with these devices, who stay until then, or longer."""
        async with AsyncExitStack() as stack:
            for device in devices:
                await stack.enter_async_context(device.working())
            outcome = await self.operator.outcome()
            await self.operator.until(until)
            return outcome


def run_on(model: ModelSpec = MODEL) -> RunSpec:
    """The run."""
    method = Hfmds(every_rounds=1, first_round=1, samples_per_device=64, steps=1)
    recipe = Recipe(model, Normalisation((0.5,), (0.5,)), rounds=3, seed=5, method=method)
    policy = RoundPolicy(minimum_devices=2, deadline_seconds=600.0, lease_seconds=60.0)
    return RunSpec(recipe, policy)


@asynccontextmanager
async def stage(
    launcher: Launcher, folder: Path, model: ModelSpec = MODEL, **settings: str
) -> AsyncIterator[Stage]:
    """A stage on a folder; `settings` are of both servers."""
    async with (
        asyncio.timeout(SECONDS),
        servers(launcher, folder, {}, **settings) as (coordinator, store),
        Operator.of(coordinator.address) as operator,
    ):
        await operator.create(run_on(model))
        yield Stage(folder, model, coordinator.address, store.address, operator)


def undisturbed(launcher: Launcher, folder: Path, model: ModelSpec = MODEL) -> Outcome:
    """What the run comes to when nothing happens."""

    async def play() -> Outcome:
        async with stage(launcher, folder, model) as on:
            return await on.outcome(on.device("a"), on.device("b"))

    return asyncio.run(play())
