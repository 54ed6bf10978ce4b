"""Whoever is killed just before or just after whichever commit, the run ends as if nobody was.

The points are not listed here. They are the functions that make a transaction, as found in the
sources, each at its first, its middle and its last time in an undisturbed run. A new one is
covered by itself if a story (`tests.integration.story`, `short_stories`) passes through it; if not,
the test fails until one does. `BufferedStory` and `LateStory` pass through the same ones in other
kinds of rounds, where some of them do more: those are listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.crash_points import CrashPoint, Journal, around, transitions
from tests.integration.operator_at_work import Outcome
from tests.integration.short_stories import BufferedStory, HastyStory, LateStory
from tests.integration.story import PATIENCE_SECONDS, Story
from tests.integration.supervision import Launcher, servers

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
    deaths: dict[str, int]


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
                {name: program.deaths for name, program in by_name.items()},
            )

    return asyncio.run(told())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Told]]:
    # By a launcher of its own: processes of one launcher order their sets alike, others do not.
    with closing(Launcher()) as launcher:
        yield [
            tell(story, launcher, tmp_path_factory.mktemp("undisturbed"), {})
            for story in (Story, HastyStory, BufferedStory, LateStory)
        ]


def test_the_stories_are_as_they_say(undisturbed: list[Told]) -> None:
    story, hasty, buffered, late = (told.outcome for told in undisturbed)
    assert story.cohorts == (("a", "b", "c"), ("a", "b", "d"), ("a", "b", "d"))
    assert story.pools == (0, 7, 7)  # three devices' three images, of which one is the same
    assert len(set(story.models)) == 3
    assert hasty.cohorts in [(("e",),), (("f",),)]
    assert buffered.cohorts == (("a",), ("b",), ("a",))
    assert len(set(buffered.models)) == 3
    assert late.cohorts == (("a", "b"),)


def _told_with_deaths(
    expected: Told, launcher: Launcher, folder: Path, program: str, points: Sequence[CrashPoint]
) -> Iterator[tuple[Told, Sequence[CrashPoint]]]:
    """The story until its program was killed at every point: with what was to come each time.

    As many as come are in one telling, since a program must bear to be killed more than once.
    """
    while points:
        told = tell(expected.story, launcher, folder / str(len(points)), {program: points})
        yield told, points
        points = points[max(told.deaths[program], 1) :]


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
    passing = [told for told in undisturbed if transition in told.journals[program].done]
    assert passing, f"no story passes through {transition}; make one do so"
    expected = passing[0]
    times = expected.journals[program].done.count(transition)
    if transition in ("StageNotes.write", "ExclusionRecords.replace"):  # how many is chance
        times = 1
    last = times if transition != "TaskRecords.renew" else 1  # slow devices renew more often
    occurrences = sorted({1, (times + 1) // 2, last})
    points = around(transition, *occurrences)
    for told, left in _told_with_deaths(expected, launcher, tmp_path, program, points):
        # How often a program looks at a run that is cancelled meanwhile is chance: only
        # the last occurrence may be missing, and then it must not have been passed.
        done = told.journals[program].done.count(transition)
        missing = left[0].occurrence == last and left[0].occurrence > max(done, 1)
        assert told.deaths[program] or missing, f"{left[0]} was not reached"
        assert told.outcome == expected.outcome, f"{left} of {times}"


@pytest.mark.parametrize(
    ("story", "transition", "occurrences"),
    [
        (BufferedStory, "TaskRecords.accept_each", (1, 2, 3)),
        (BufferedStory, "PhaseRecords.open", (2,)),
        (BufferedStory, "RunRecords.complete_round", (2,)),
        (LateStory, "TaskRecords.accept_each", (1, 2)),
    ],
)
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
        assert told.deaths["coordinator"], f"{left[0]} was not reached"
        assert told.outcome == expected.outcome, left


@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_while_storage_is_made_ready_the_run_ends_the_same(
    launcher: Launcher, undisturbed: list[Told], tmp_path: Path, program: str
) -> None:
    expected = undisturbed[0]
    others = set(expected.journals[program].done) - set(transitions(program))
    assert others
    for name in sorted(others):
        points = around(name, 1)
        told = tell(expected.story, launcher, tmp_path / name, {program: points})
        assert told.deaths[program] == len(points), f"not all of {points} were reached"
        assert told.outcome == expected.outcome, points
