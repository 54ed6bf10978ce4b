"""A program killed just before or just after any commit leaves the result of the run unchanged.

The tests find the kill points in the sources: every function that makes a transaction. They kill
the program at each commit of that function in an undisturbed run, or at the first, the middle and
the last commit if there are many. A new function needs no entry here, as long as a scenario passes
through it. Otherwise a test fails.

The same holds for the steps of the state machines. One function may take several steps, some of
them only in one scenario. If no point covers a step, its scenario runs again with a kill there.

`ALSO` lists commits of other kinds of rounds, in which a function does more.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio

from coordinator.records.states import ROUND_TRANSITIONS, RUN_TRANSITIONS, TASK_TRANSITIONS
from tests.kills.crash_points import (
    NOT_OF_RUNS,
    CrashPoint,
    Journal,
    all_transitions,
    around,
    step,
    transitions,
    transitions_in,
)
from tests.kills.full_scenario import PATIENCE_SECONDS, FullScenario
from tests.kills.short_scenarios import (
    AsynchronousScenario,
    LateResultScenario,
    PausedRunsScenario,
    ResumedRunScenario,
    SlowDeviceScenario,
)
from tests.support.operator import Outcome
from tests.support.supervision import Launcher, servers

pytestmark = pytest.mark.integration

PROGRAMS = ("coordinator", "synthesis_store")


class Scenario(Protocol):
    """A run that passes through many commits."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None: ...

    async def execute(self) -> Outcome: ...


@dataclass(frozen=True)
class Execution:
    """The outcome of a scenario, and what the programs did until their kill."""

    scenario: type[Scenario]
    outcome: Outcome
    journals: dict[str, Journal]
    killed_taking: dict[str, tuple[frozenset[str], ...]]  # the steps of each killed commit

    def deaths(self, program: str) -> int:
        return len(self.killed_taking[program])


SCENARIOS: tuple[type[Scenario], ...] = (
    FullScenario,
    SlowDeviceScenario,
    AsynchronousScenario,
    LateResultScenario,
    ResumedRunScenario,
    PausedRunsScenario,
)

FEW = 6
"""Up to this many commits of a function, the tests kill at each of them."""

OF_SEVERAL_DEVICES = {"Registry.record", "TaskRecords.lease_each"}
"""The coordinator answers simultaneous devices in one commit, so the count varies."""

ALSO = (
    (AsynchronousScenario, "TaskRecords.accept_each", (1, 2, 3)),
    (AsynchronousScenario, "PhaseRecords.open", (2,)),
    (AsynchronousScenario, "RunRecords.complete_round", (2,)),
    (LateResultScenario, "TaskRecords.accept_each", (1, 2)),
)
"""Commits of other kinds of rounds: scenario, function, and which of its commits."""


def _steps(kind: str, machine: Mapping[enum.Enum, frozenset[enum.Enum]]) -> set[str]:
    return {step(kind, a.name, b.name) for a, steps in machine.items() for b in steps}


STEPS = (
    _steps("run", RUN_TRANSITIONS)  # type: ignore[arg-type]
    | _steps("round", ROUND_TRANSITIONS)  # type: ignore[arg-type]
    | _steps("task", TASK_TRANSITIONS)  # type: ignore[arg-type]
)
"""Every step that the state machines allow."""


async def execute(
    scenario: type[Scenario],
    launcher: Launcher,
    folder: Path,
    points: Mapping[str, Sequence[CrashPoint]],
) -> Execution:
    """Run a scenario with fresh programs, and kill each at its points in turn."""
    folder.mkdir(exist_ok=True)
    away = str(PATIENCE_SECONDS)
    async with servers(launcher, folder, points, device_away_seconds=away) as programs:
        outcome = await scenario(folder, *(program.address for program in programs)).execute()
        by_name = dict(zip(PROGRAMS, programs, strict=True))
        return Execution(
            scenario,
            outcome,
            {name: program.journal for name, program in by_name.items()},
            {name: program.killed_taking for name, program in by_name.items()},
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Execution]]:
    # An own launcher: the processes of one launcher share their hash seed, others do not.
    with closing(Launcher()) as launcher:
        yield [
            await execute(scenario, launcher, tmp_path_factory.mktemp("undisturbed"), {})
            for scenario in SCENARIOS
        ]


def test_the_scenarios_do_what_their_docstrings_say(undisturbed: list[Execution]) -> None:
    full, slow, asynchronous, late, resumed, paused = (
        execution.outcome for execution in undisturbed
    )
    assert full.cohorts == (("a", "b", "c"), ("a", "b", "d"), ("a", "b", "d"))
    assert full.pools == (0, 7, 7)  # three images of three devices, with one in common
    assert len(set(full.models)) == 3
    assert slow.cohorts in [(("e",),), (("f",),)]
    assert asynchronous.cohorts == (("a",), ("b",), ("a",))
    assert len(set(asynchronous.models)) == 3
    assert late.cohorts == (("a", "b"),)
    assert resumed.cohorts == paused.cohorts == (("a", "b"), ("a", "b"))


def _passing(
    undisturbed: Sequence[Execution], program: str, transition: str
) -> tuple[Execution, list[int]]:
    """Return a scenario that passes through a transition, and the occurrences to kill at."""
    passing = [
        execution for execution in undisturbed if transition in execution.journals[program].done
    ]
    assert passing, f"no scenario passes through {transition}; make one do so"
    times = passing[0].journals[program].done.count(transition)
    if transition == "ExclusionList.replace":  # a varying number
        times = 1
    occurrences = {1, (times + 1) // 2, times}
    if transition == "TaskRecords.renew":  # slow devices renew more often
        occurrences = {1, (times + 1) // 2}
    elif times <= FEW and transition not in OF_SEVERAL_DEVICES:
        occurrences = {*range(1, times + 1)}
    return passing[0], sorted(occurrences)


@dataclass(frozen=True)
class Remaining:
    """A commit to kill at because it takes steps that no other point covers."""

    transition: str
    occurrence: int
    steps: frozenset[str]


def _remaining(undisturbed: Sequence[Execution]) -> dict[type[Scenario], list[Remaining]]:
    """Return, for each scenario, the commits whose steps no other kill point covers.

    The same step counts once for each function that takes it: the functions do different work.
    """
    at = [
        (*_passing(undisturbed, "coordinator", transition), transition)
        for transition in transitions("coordinator")
    ]
    killed = {(execution.scenario, what, n) for execution, times, what in at for n in times}
    killed |= {(scenario, what, n) for scenario, what, times in ALSO for n in times}
    commits = [
        (execution.scenario, *commit)
        for execution in undisturbed
        for commit in execution.journals["coordinator"].steps()
    ]
    covered = {
        (what, step_taken)
        for scenario, what, n, taken in commits
        for step_taken in taken
        if (scenario, what, n) in killed
    }
    remaining: dict[type[Scenario], list[Remaining]] = {scenario: [] for scenario in SCENARIOS}
    for scenario, what, n, taken in commits:
        uncovered = {(what, step_taken) for step_taken in taken} - covered
        if uncovered:
            covered |= uncovered
            steps = frozenset(step_taken for _, step_taken in uncovered)
            remaining[scenario].append(Remaining(what, n, steps))
    return remaining


def test_the_scenarios_take_every_step_of_the_state_machines_and_no_other(
    undisturbed: list[Execution],
) -> None:
    # So the tests kill at every step: the remaining ones have a test of their own.
    taken = {
        step_taken
        for execution in undisturbed
        for steps in execution.journals["coordinator"].taken
        for step_taken in steps
    }
    assert sorted(STEPS - taken) == [], "no scenario takes these steps; make one do so"
    assert sorted(taken - STEPS) == [], "the state machines have no such steps"


def test_the_listed_exceptions_exist() -> None:
    # A stale exception would hide a later function of the same name.
    known = {name for program in PROGRAMS for name in all_transitions(program)}
    assert known >= NOT_OF_RUNS


def test_a_commit_gets_the_name_of_the_public_function_above_any_private_ones() -> None:
    module = ast.parse(
        """
class Records:
    def change(self):
        self._first()
    def look(self):
        return self._seen()
    def begin(self):
        Thread(target=self._work).start()
    def _first(self):
        self._second()
    def _second(self):
        with write_connection(self._engine):
            pass
    def _seen(self):
        return 1
    def _work(self):
        with write_session(self._engine):
            pass
"""
    )
    assert [*transitions_in(module)] == ["Records.change", "Records._work"]


async def _executions_with_deaths(
    expected: Execution,
    launcher: Launcher,
    folder: Path,
    program: str,
    points: Sequence[CrashPoint],
) -> AsyncIterator[tuple[Execution, Sequence[CrashPoint]]]:
    """Run the scenario until its program died at every point. Yield the points before each run.

    One run kills at as many points as it reaches: a program must survive several kills.
    """
    while points:
        execution = await execute(
            expected.scenario, launcher, folder / str(len(points)), {program: points}
        )
        yield execution, points
        points = points[max(execution.deaths(program), 1) :]


@pytest.mark.matrix(one_in=4)
@pytest.mark.parametrize(
    ("program", "transition"),
    [(program, name) for program in PROGRAMS for name in transitions(program)],
)
async def test_killed_at_a_commit_the_run_ends_the_same(
    launcher: Launcher,
    undisturbed: list[Execution],
    tmp_path: Path,
    program: str,
    transition: str,
) -> None:
    expected, occurrences = _passing(undisturbed, program, transition)
    last = occurrences[-1]
    points = around(transition, *occurrences)
    async for execution, points_left in _executions_with_deaths(
        expected, launcher, tmp_path, program, points
    ):
        # The number of looks at a cancelled run varies. So only the last occurrence may be
        # missing, and only if the program did not pass it.
        done = execution.journals[program].done.count(transition)
        missing = points_left[0].occurrence == last and points_left[0].occurrence > max(done, 1)
        assert execution.deaths(program) or missing, f"{points_left[0]} was not reached"
        assert execution.outcome == expected.outcome, points_left


@pytest.mark.parametrize(("scenario", "transition", "occurrences"), ALSO)
async def test_killed_at_a_commit_of_another_kind_of_round_the_run_ends_the_same(
    launcher: Launcher,
    undisturbed: list[Execution],
    tmp_path: Path,
    scenario: type[Scenario],
    transition: str,
    occurrences: tuple[int, ...],
) -> None:
    [expected] = [execution for execution in undisturbed if execution.scenario is scenario]
    points = around(transition, *occurrences)
    async for execution, points_left in _executions_with_deaths(
        expected, launcher, tmp_path, "coordinator", points
    ):
        assert execution.deaths("coordinator"), f"{points_left[0]} was not reached"
        assert execution.outcome == expected.outcome, points_left


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_killed_at_the_remaining_steps_the_run_ends_the_same(
    launcher: Launcher, undisturbed: list[Execution], tmp_path: Path, scenario: type[Scenario]
) -> None:
    [expected] = [execution for execution in undisturbed if execution.scenario is scenario]
    remaining = _remaining(undisturbed)[scenario]
    steps = {(commit.transition, commit.occurrence): commit.steps for commit in remaining}
    points = [
        point for commit in remaining for point in around(commit.transition, commit.occurrence)
    ]
    async for execution, points_left in _executions_with_deaths(
        expected, launcher, tmp_path, "coordinator", points
    ):
        assert execution.deaths("coordinator"), f"{points_left[0]} was not reached"
        for point, taken in zip(points_left, execution.killed_taking["coordinator"], strict=False):
            assert steps[point.what, point.occurrence] <= taken, point
        assert execution.outcome == expected.outcome, points_left


@pytest.mark.parametrize("program", PROGRAMS)
async def test_killed_while_storage_is_made_ready_the_run_ends_the_same(
    launcher: Launcher, undisturbed: list[Execution], tmp_path: Path, program: str
) -> None:
    # And whatever else makes a commit in a scenario that is not found in the sources.
    others: dict[str, Execution] = {}
    for execution in reversed(undisturbed):
        others |= dict.fromkeys(
            {*execution.journals[program].done} - {*transitions(program)}, execution
        )
    assert others
    for name, expected in sorted(others.items()):
        points = around(name, 1)
        execution = await execute(expected.scenario, launcher, tmp_path / name, {program: points})
        assert execution.deaths(program) == len(points), f"not all of {points} were reached"
        assert execution.outcome == expected.outcome, points
