"""A small run for tests of faults: two devices and three rounds, each with a refresh.

Each task depends on the device's memory of its last task of the same kind.
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
from tests.support.scripted_devices import MODEL, Interceptor, ScriptedDevice, pass_on
from tests.support.supervision import Launcher, servers

SECONDS = 60.0
"""Time limit of the run, which takes less than one second without faults."""

TASKS = 6
"""Tasks of a device: it synthesises and trains three times."""


@dataclass(frozen=True)
class Stage:
    """Servers with a run that waits for devices a and b."""

    folder: Path
    model: ModelSpec
    coordinator: str
    store: str
    operator: Operator

    def device(
        self,
        device_id: str,
        interceptor: Interceptor = pass_on,
        coordinator: str = "",
        store: str = "",
    ) -> ScriptedDevice:
        """Return a device, which may reach the servers at other addresses."""
        addresses = coordinator or self.coordinator, store or self.store
        return ScriptedDevice(
            device_id, self.folder, *addresses, model=self.model, interceptor=interceptor
        )

    async def outcome(
        self, *devices: ScriptedDevice, until: Callable[[], bool] = lambda: True
    ) -> Outcome:
        """Return the results of the run with these devices. They stay until the condition holds."""
        async with AsyncExitStack() as stack:
            for device in devices:
                await stack.enter_async_context(device.working())
            outcome = await self.operator.outcome()
            await self.operator.until(until)
            return outcome


def run_on(model: ModelSpec = MODEL) -> RunSpec:
    """Return the settings of the run."""
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


async def undisturbed(launcher: Launcher, folder: Path, model: ModelSpec = MODEL) -> Outcome:
    """Return the results of the run without faults."""
    async with stage(launcher, folder, model) as on:
        return await on.outcome(on.device("a"), on.device("b"))
