"""Whoever is killed just before or just after whichever commit, the run ends as if nobody was.

The points are not listed here. They are the functions that make a transaction, as found in the
sources, each at every time in an undisturbed run, or at its first, its middle and its last one if
they are many. A new one is covered by itself if a story (`tests.kills.full_scenario`,
`short_stories`) passes through it; if not, the test fails until one does. So it is with the steps
of the state machines, which one function may take several of, and each only in some stories: if
there is one that none of these points is at, its story is told again with a kill there.
`BufferedStory` and `LateStory` pass through the same functions in other kinds of rounds, where some
of them do more: those are listed.
"""

from __future__ import annotations

import ast
import asyncio
import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

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
from tests.kills.full_scenario import PATIENCE_SECONDS, Story
from tests.kills.short_scenarios import (
    BufferedStory,
    ChancesStory,
    HastyStory,
    InterruptedStory,
    LateStory,
)
from tests.support.operator import Outcome
from tests.support.supervision import Launcher, servers

pytestmark = pytest.mark.integration

PROGRAMS = ("coordinator", "synthesis_store")


class Tale(Protocol):
    """A run that passes through transitions."""

    def __init__(self, folder: Path, coordinator: str, store: str) -> None: ...

    async def tell(self) -> Outcome: ...


@dataclass(frozen=True)
class Told:
    """What the run of a story came to, and what the programs did until they were killed."""

    story: type[Tale]
    outcome: Outcome
    journals: dict[str, Journal]
    killed_taking: dict[str, tuple[frozenset[str], ...]]  # at each death, these steps

    def deaths(self, program: str) -> int:
        return len(self.killed_taking[program])


STORIES: tuple[type[Tale], ...] = (
    Story,
    HastyStory,
    BufferedStory,
    LateStory,
    ChancesStory,
    InterruptedStory,
)

FEW = 6
"""A function that commits so often in a story, or less, is killed at each time."""

OF_SEVERAL_DEVICES = {"Registry.remember", "TaskRecords.lease_each"}
"""Devices that ask at about the same time are answered together: how often is chance."""

ALSO = (
    (BufferedStory, "TaskRecords.accept_each", (1, 2, 3)),
    (BufferedStory, "PhaseRecords.open", (2,)),
    (BufferedStory, "RunRecords.complete_round", (2,)),
    (LateStory, "TaskRecords.accept_each", (1, 2)),
)
"""Commits of other kinds of rounds, the how many-th ones."""


def _steps(kind: str, machine: Mapping[enum.Enum, frozenset[enum.Enum]]) -> set[str]:
    return {step(kind, a.name, b.name) for a, steps in machine.items() for b in steps}


STEPS = (
    _steps("run", RUN_TRANSITIONS)  # type: ignore[arg-type]
    | _steps("round", ROUND_TRANSITIONS)  # type: ignore[arg-type]
    | _steps("task", TASK_TRANSITIONS)  # type: ignore[arg-type]
)
"""All that the tables allow."""


def tell(
    story: type[Tale], launcher: Launcher, folder: Path, points: Mapping[str, Sequence[CrashPoint]]
) -> Told:
    """The story with fresh programs, each killed at its points one after the other."""
    folder.mkdir(exist_ok=True)
    away = str(PATIENCE_SECONDS)

    async def told() -> Told:
        async with servers(launcher, folder, points, device_away_seconds=away) as programs:
            outcome = await story(folder, *(program.address for program in programs)).tell()
            by_name = dict(zip(PROGRAMS, programs, strict=True))
            return Told(
                story,
                outcome,
                {name: program.journal for name, program in by_name.items()},
                {name: program.killed_taking for name, program in by_name.items()},
            )

    return asyncio.run(told())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Told]]:
    # By a launcher of its own: processes of one launcher order their sets alike, others do not.
    with closing(Launcher()) as launcher:
        yield [
            tell(story, launcher, tmp_path_factory.mktemp("undisturbed"), {}) for story in STORIES
        ]


def test_the_stories_are_as_they_say(undisturbed: list[Told]) -> None:
    story, hasty, buffered, late, chances, interrupted = (told.outcome for told in undisturbed)
    assert story.cohorts == (("a", "b", "c"), ("a", "b", "d"), ("a", "b", "d"))
    assert story.pools == (0, 7, 7)  # three devices' three images, of which one is the same
    assert len(set(story.models)) == 3
    assert hasty.cohorts in [(("e",),), (("f",),)]
    assert buffered.cohorts == (("a",), ("b",), ("a",))
    assert len(set(buffered.models)) == 3
    assert late.cohorts == (("a", "b"),)
    assert chances.cohorts == interrupted.cohorts == (("a", "b"), ("a", "b"))


def _passing(undisturbed: Sequence[Told], program: str, transition: str) -> tuple[Told, list[int]]:
    """The story in which a program is killed at a transition, and at which times."""
    passing = [told for told in undisturbed if transition in told.journals[program].done]
    assert passing, f"no story passes through {transition}; make one do so"
    times = passing[0].journals[program].done.count(transition)
    if transition in ("StageNotes.write", "ExclusionRecords.replace"):  # how many is chance
        times = 1
    some = {1, (times + 1) // 2, times}
    if transition == "TaskRecords.renew":  # slow devices renew more often
        some = {1, (times + 1) // 2}
    elif times <= FEW and transition not in OF_SEVERAL_DEVICES:
        some = {*range(1, times + 1)}
    return passing[0], sorted(some)


@dataclass(frozen=True)
class Remaining:
    """What a program is to be killed at in one story because of the steps that are taken there."""

    transition: str
    occurrence: int
    steps: frozenset[str]


def _remaining(undisturbed: Sequence[Told]) -> dict[type[Tale], list[Remaining]]:
    """By story, the commits whose steps are killed at nowhere else when that function takes them.

    A step is another one for each function that takes it, since what else that does is other.
    """
    at = [
        (*_passing(undisturbed, "coordinator", transition), transition)
        for transition in transitions("coordinator")
    ]
    killed = {(told.story, what, n) for told, times, what in at for n in times}
    killed |= {(story, what, n) for story, what, times in ALSO for n in times}
    commits = [
        (told.story, *commit)
        for told in undisturbed
        for commit in told.journals["coordinator"].steps()
    ]
    carried = {
        (what, one)
        for story, what, n, taken in commits
        for one in taken
        if (story, what, n) in killed
    }
    remaining: dict[type[Tale], list[Remaining]] = {story: [] for story in STORIES}
    for story, what, n, taken in commits:
        more = {(what, one) for one in taken} - carried
        if more:
            carried |= more
            remaining[story].append(Remaining(what, n, frozenset(one for _, one in more)))
    return remaining


def test_the_stories_take_every_step_that_there_is_and_no_other(undisturbed: list[Told]) -> None:
    # And so each is killed at: what is left of them by all other points has a test of its own.
    taken = {
        one for told in undisturbed for steps in told.journals["coordinator"].taken for one in steps
    }
    assert sorted(STEPS - taken) == [], "no story takes these; make one do so"
    assert sorted(taken - STEPS) == [], "the tables have no such steps"


def test_what_no_run_makes_is_there() -> None:
    # Or a name that nobody has any more would go on hiding the next one that is called so.
    there = {name for program in PROGRAMS for name in all_transitions(program)}
    assert there >= NOT_OF_RUNS


def test_whoever_commits_is_found_however_many_aids_are_between() -> None:
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
        with changing(self._engine):
            pass
    def _seen(self):
        return 1
    def _work(self):
        with transaction(self._engine):
            pass
"""
    )
    assert [*transitions_in(module)] == ["Records.change", "Records._work"]


def _told_with_deaths(
    expected: Told, launcher: Launcher, folder: Path, program: str, points: Sequence[CrashPoint]
) -> Iterator[tuple[Told, Sequence[CrashPoint]]]:
    """The story until its program was killed at every point: with what was to come each time.

    As many as come are in one telling, since a program must bear to be killed more than once.
    """
    while points:
        told = tell(expected.story, launcher, folder / str(len(points)), {program: points})
        yield told, points
        points = points[max(told.deaths(program), 1) :]


@pytest.mark.matrix(one_in=4)
@pytest.mark.parametrize(
    ("program", "transition"),
    [(program, name) for program in PROGRAMS for name in transitions(program)],
)
def test_killed_at_a_commit_the_run_ends_the_same(
    launcher: Launcher,
    undisturbed: list[Told],
    tmp_path: Path,
    program: str,
    transition: str,
) -> None:
    expected, occurrences = _passing(undisturbed, program, transition)
    last = occurrences[-1]
    points = around(transition, *occurrences)
    for told, left in _told_with_deaths(expected, launcher, tmp_path, program, points):
        # How often a program looks at a run that is cancelled meanwhile is chance: only
        # the last occurrence may be missing, and then it must not have been passed.
        done = told.journals[program].done.count(transition)
        missing = left[0].occurrence == last and left[0].occurrence > max(done, 1)
        assert told.deaths(program) or missing, f"{left[0]} was not reached"
        assert told.outcome == expected.outcome, left


@pytest.mark.parametrize(("story", "transition", "occurrences"), ALSO)
def test_killed_at_a_commit_of_another_kind_of_round_the_run_ends_the_same(
    launcher: Launcher,
    undisturbed: list[Told],
    tmp_path: Path,
    story: type[Tale],
    transition: str,
    occurrences: tuple[int, ...],
) -> None:
    [expected] = [told for told in undisturbed if told.story is story]
    points = around(transition, *occurrences)
    for told, left in _told_with_deaths(expected, launcher, tmp_path, "coordinator", points):
        assert told.deaths("coordinator"), f"{left[0]} was not reached"
        assert told.outcome == expected.outcome, left


@pytest.mark.parametrize("story", STORIES)
def test_killed_at_the_steps_that_no_other_point_is_at_the_run_ends_the_same(
    launcher: Launcher, undisturbed: list[Told], tmp_path: Path, story: type[Tale]
) -> None:
    [expected] = [told for told in undisturbed if told.story is story]
    remaining = _remaining(undisturbed)[story]
    steps = {(one.transition, one.occurrence): one.steps for one in remaining}
    points = [point for one in remaining for point in around(one.transition, one.occurrence)]
    for told, left in _told_with_deaths(expected, launcher, tmp_path, "coordinator", points):
        assert told.deaths("coordinator"), f"{left[0]} was not reached"
        for point, taken in zip(left, told.killed_taking["coordinator"], strict=False):
            assert steps[point.what, point.occurrence] <= taken, point
        assert told.outcome == expected.outcome, left


@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_while_storage_is_made_ready_the_run_ends_the_same(
    launcher: Launcher, undisturbed: list[Told], tmp_path: Path, program: str
) -> None:
    # And whatever else makes a commit in a story that is not found in the sources.
    others: dict[str, Told] = {}
    for told in reversed(undisturbed):
        others |= dict.fromkeys({*told.journals[program].done} - {*transitions(program)}, told)
    assert others
    for name, expected in sorted(others.items()):
        points = around(name, 1)
        told = tell(expected.story, launcher, tmp_path / name, {program: points})
        assert told.deaths(program) == len(points), f"not all of {points} were reached"
        assert told.outcome == expected.outcome, points
