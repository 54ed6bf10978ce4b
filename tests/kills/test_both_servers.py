"""A kill around a commit with the results of several devices loses none and counts none twice.

The other suites commit each result alone, to have a kill point between any two. This suite counts
simultaneous results in one commit, as the programs of operators do.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hfmds.domain.recipe import Normalisation, Recipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec
from hfmds.domain.tasks import Assignment
from tests.kills.crash_points import CrashPoint, Journal, Moment
from tests.kills.full_scenario import PATIENCE_SECONDS, SECONDS
from tests.kills.lost_results import ResultWatcher
from tests.support.operator import Operator, Outcome
from tests.support.scripted_devices import MODEL, Call, ScriptedDevice
from tests.support.supervision import Launcher, servers
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

DEVICES = "abcdefgh"
ROUNDS = 2
# The first result is counted at once, and those that come meanwhile in the commit after it.
POINT = "TaskRecords.accept_each"
_OCCURRENCE = 2
_ATTEMPTS = 5  # it is likely that these are several, not certain

_SPEC = RunSpec(
    Recipe(MODEL, Normalisation((0.5,), (0.5,)), rounds=ROUNDS, seed=13),
    RoundPolicy(
        minimum_devices=len(DEVICES), deadline_seconds=600.0, lease_seconds=PATIENCE_SECONDS
    ),
)


class SimultaneousDevices:
    """Devices that hand in their results at the same time, in each round."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None:
        self.watcher = ResultWatcher()
        self._ready: defaultdict[int, set[str]] = defaultdict(set)  # by round
        self._devices = [
            ScriptedDevice(
                name,
                folder,
                coordinator,
                store,
                interceptor=self.watcher.of(name, partial(self._together, name)),
            )
            for name in DEVICES
        ]
        self._rounds: dict[str, int] = {}  # of tasks

    async def work(self, operator: Operator) -> Outcome:
        """Run the devices, and return the results of the run."""
        async with AsyncExitStack() as stack:
            await operator.create(_SPEC)
            for device in self._devices:
                await stack.enter_async_context(device.working())
            return await operator.outcome()

    async def _together(self, device_id: str, call: Call) -> object:
        if call.method == "submit_update":
            ready = self._ready[self._rounds[call.args[0]]]
            ready.add(device_id)
            await eventually(lambda: len(ready) == len(DEVICES))
        answer = await call()
        if isinstance(answer, Assignment):
            self._rounds[answer.task_id] = answer.round_number
        return answer


@dataclass(frozen=True)
class Execution:
    """The results of one run, and what its programs did."""

    outcome: Outcome
    accepted: list[tuple[int, str]]
    watcher: ResultWatcher
    journal: Journal


async def execute(launcher: Launcher, folder: Path, point: CrashPoint | None = None) -> Execution:
    folder.mkdir()
    points = {"coordinator": [point]} if point else {}
    away = str(PATIENCE_SECONDS)
    async with (
        asyncio.timeout(SECONDS),
        servers(launcher, folder, points, commit_together=True, device_away_seconds=away) as (
            coordinator,
            store,
        ),
        Operator.of(coordinator.address) as operator,
    ):
        devices = SimultaneousDevices(folder, coordinator.address, store.address)
        outcome = await devices.work(operator)
        accepted = await operator.accepted()
        return Execution(outcome, accepted, devices.watcher, coordinator.journal)


async def test_killed_at_a_commit_of_several_results_nothing_is_lost_or_counted_twice(
    launcher: Launcher, tmp_path: Path
) -> None:
    expected = await execute(launcher, tmp_path / "undisturbed")
    assert expected.outcome.cohorts == (tuple(DEVICES),) * ROUNDS
    for moment in ("before", "after"):
        execution = await _killed(launcher, tmp_path / moment, moment)
        assert execution.outcome == expected.outcome
        execution.watcher.require_sound()
        everyone = [(number, name) for number in range(1, ROUNDS + 1) for name in DEVICES]
        assert sorted(execution.accepted) == everyone


async def _killed(launcher: Launcher, folder: Path, moment: Moment) -> Execution:
    folder.mkdir()
    for attempt in range(_ATTEMPTS):
        point = CrashPoint(POINT, _OCCURRENCE, moment)
        execution = await execute(launcher, folder / str(attempt), point)
        assert execution.journal.killed, f"{POINT} was not reached"
        # Of those in the commit nobody had heard: all of it happened, or none. Who was in the one
        # before may have heard of it, or not.
        before = len(execution.watcher.taken_before)
        if moment == "before":
            assert before <= 1
            return execution
        if before > 2:
            return execution
    pytest.fail(f"{POINT} never had several results")
