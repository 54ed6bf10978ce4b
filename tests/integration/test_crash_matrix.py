"""Whoever is killed just before or just after whichever commit, the run ends as if nobody was.

The points are not listed here. They are the functions that make a transaction, as found in the
sources, each at its first, its middle and its last time in an undisturbed run. A new one is
covered by itself if a story (`tests.integration.story`, `short_stories`) passes through it; if not,
the test fails until one does. `BufferedStory` and `LateStory` pass through the same ones in other
kinds of rounds, where some of them do more: those are listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.crash_points import CrashPoint, Journal, Moment, transitions
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


def tell(
    story: type[Tale], launcher: Launcher, folder: Path, points: Mapping[str, CrashPoint]
) -> Told:
    """The story with fresh programs."""
    folder.mkdir(exist_ok=True)
    away = str(PATIENCE_SECONDS)

    async def told() -> Told:
        async with servers(launcher, folder, points, device_away_seconds=away) as programs:
            coordinator, store = programs
            outcome = await story(folder, coordinator.address, store.address).tell()
            journals = {"coordinator": coordinator.journal, "synthesis_store": store.journal}
            return Told(story, outcome, journals)

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


@pytest.mark.parametrize("moment", ["before", "after"])
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
    moment: Moment,
) -> None:
    passing = [told for told in undisturbed if transition in told.journals[program].done]
    assert passing, f"no story passes through {transition}; make one do so"
    expected = passing[0]
    times = expected.journals[program].done.count(transition)
    if transition in ("StageNotes.write", "ExclusionRecords.replace"):  # how many is chance
        times = 1
    last = times if transition != "TaskRecords.renew" else 1  # slow devices renew more often
    for occurrence in sorted({1, (times + 1) // 2, last}):
        point = CrashPoint(transition, occurrence, moment)
        told = tell(expected.story, launcher, tmp_path / str(occurrence), {program: point})
        journal = told.journals[program]
        # How often a program looks at a run that is cancelled meanwhile is chance: only
        # the last occurrence may be missing, and then it must not have been passed.
        missing = 1 < occurrence == times and journal.done.count(transition) < occurrence
        assert journal.killed or missing, f"{point} was not reached"
        assert told.outcome == expected.outcome, f"{point} of {times}"


@pytest.mark.parametrize("moment", ["before", "after"])
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
    moment: Moment,
) -> None:
    [expected] = [told.outcome for told in undisturbed if told.story is story]
    for occurrence in occurrences:
        point = CrashPoint(transition, occurrence, moment)
        told = tell(story, launcher, tmp_path / str(occurrence), {"coordinator": point})
        assert told.journals["coordinator"].killed, f"{point} was not reached"
        assert told.outcome == expected, point


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_killed_while_storage_is_made_ready_the_run_ends_the_same(
    launcher: Launcher, undisturbed: list[Told], tmp_path: Path, program: str, moment: Moment
) -> None:
    expected = undisturbed[0]
    others = set(expected.journals[program].done) - set(transitions(program))
    assert others
    for name in sorted(others):
        point = CrashPoint(name, 1, moment)
        told = tell(expected.story, launcher, tmp_path / name, {program: point})
        assert told.journals[program].killed, f"{point} was not reached"
        assert told.outcome == expected.outcome, point
