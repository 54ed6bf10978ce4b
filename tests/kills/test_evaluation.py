"""Killed around any commit of an evaluation, a run measures, stops and keeps the same models.

What a device measures here is drawn from its task's seed, so a model that is measured twice, by
others or not at all shows in the numbers, and in when the run stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from hfmds.domain.learning import Traffic
from hfmds.domain.recipe import Normalisation, Recipe
from hfmds.domain.round_policy import EarlyStop, EvaluationByDevices, Retention, RoundPolicy
from hfmds.domain.runs import Round, Run, RunSpec, RunState
from hfmds.wire.clients.admin_client import AdminClient
from tests.kills.crash_points import CrashPoint, Journal, Moment
from tests.kills.full_scenario import PATIENCE_SECONDS, SECONDS
from tests.support.scripted_devices import MODEL, ScriptedDevice, peer, retrying
from tests.support.supervision import Launcher, servers
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

TRANSITIONS = (
    "RoundRecords.enter",
    "PhaseRecords.open",
    "PhaseRecords.close",
    "RunRecords.complete_round",
)
"""Commits of the run's driver: their number is the same in every run."""

_ATTEMPTS = 5  # a commit may be made together with a device's, and then has the name of that

_SPEC = RunSpec(
    Recipe(MODEL, Normalisation((0.5,), (0.5,)), rounds=9, seed=11),
    RoundPolicy(
        minimum_devices=2,
        lease_seconds=PATIENCE_SECONDS,
        evaluation=EvaluationByDevices(devices=2),
        early_stop=EarlyStop(patience_rounds=2),
        retention=Retention(keep_last=1),
    ),
)


@dataclass(frozen=True)
class Execution:
    """The results of a run, and what the coordinator did until its kill."""

    state: RunState
    reason: str
    best_round: int
    rounds: tuple[Round, ...]
    journal: Journal

    @property
    def outcome(self) -> tuple[object, ...]:
        """Everything that must not depend on the time of the kill."""
        return self.state, self.reason, self.best_round, self.rounds


async def execute(
    launcher: Launcher, folder: Path, points: Mapping[str, Sequence[CrashPoint]]
) -> Execution:
    folder.mkdir(exist_ok=True)
    away = str(PATIENCE_SECONDS)
    async with (
        asyncio.timeout(SECONDS),
        servers(launcher, folder, points, device_away_seconds=away) as (coordinator, store),
        AsyncExitStack() as stack,
    ):
        admin = AdminClient(peer("coordinator", coordinator.address))
        stack.push_async_callback(admin.close)
        persist = retrying("coordinator").call
        await persist(admin.create_run, _SPEC, "run")
        for device_id in "ab":
            device = ScriptedDevice(device_id, folder, coordinator.address, store.address)
            await stack.enter_async_context(device.working())

        async def ended() -> Run | None:
            run: Run = await persist(admin.get_run, "run")
            return None if run.state is RunState.RUNNING else run

        run = await eventually(ended, SECONDS)
        assert run is not None
        # How long it took and what devices fetched again may well differ.
        rounds = tuple(
            replace(done, duration_seconds=0.0, traffic=Traffic())
            for done in await persist(admin.list_rounds, "run")
        )
        journal = coordinator.journal
        return Execution(run.state, run.state_reason, run.best_round, rounds, journal)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Execution]:
    with closing(Launcher()) as launcher:
        yield await execute(launcher, tmp_path_factory.mktemp("undisturbed"), {})


def test_the_run_stops_early_and_keeps_the_best_and_the_last(undisturbed: Execution) -> None:
    assert undisturbed.state is RunState.COMPLETED
    assert undisturbed.reason.startswith("stopped early")
    last = len(undisturbed.rounds)
    assert last == undisturbed.best_round + 2 < _SPEC.recipe.rounds
    kept = [done.number for done in undisturbed.rounds if not done.model_dropped]
    assert kept == [undisturbed.best_round, last]
    devices = [d.device_evaluation and d.device_evaluation.devices for d in undisturbed.rounds]
    assert devices == [2] * last


@pytest.mark.matrix(one_in=2)
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("transition", TRANSITIONS)
async def test_killed_at_the_last_of_these_commits_the_run_ends_the_same(
    launcher: Launcher, undisturbed: Execution, tmp_path: Path, transition: str, moment: Moment
) -> None:
    # The last of each is that of the last round's evaluation.
    point = CrashPoint(transition, undisturbed.journal.done.count(transition), moment)
    for attempt in range(_ATTEMPTS):
        execution = await execute(launcher, tmp_path / str(attempt), {"coordinator": [point]})
        assert execution.outcome == undisturbed.outcome, point
        if execution.journal.killed:
            return
    pytest.fail(f"{point} was not reached")
