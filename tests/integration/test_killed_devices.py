"""A device that is killed anywhere in its work, and started again, hands in the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from hfmds.data.sources import save_npz
from tests.integration.crash_points import CrashPoint, Journal, Moment
from tests.integration.operator_at_work import Outcome
from tests.integration.scripted_devices import STEPS, images_for
from tests.integration.stage import stage, undisturbed
from tests.integration.supervision import Launcher, Supervised

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def expected(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return undisturbed(launcher, tmp_path_factory.mktemp("undisturbed"))


def with_process(
    launcher: Launcher, folder: Path, point: CrashPoint | None
) -> tuple[Outcome, Journal]:
    """The run with a device that is a process, killed at a point and started again."""

    async def play() -> tuple[Outcome, Journal]:
        async with stage(launcher, folder) as on:
            save_npz(folder / "a.npz", images_for(on.model))
            process = Supervised(
                launcher,
                "edge_client",
                folder,
                (point,) if point else (),
                device_id="a",
                data=str(folder / "a.npz"),
                state_dir=str(folder / "a"),
                coordinator=on.coordinator,
                store=on.store,
                retry_max_seconds="0.2",
            )
            async with process.running():
                return await on.outcome(on.device("b")), process.journal

    return asyncio.run(play())


@pytest.fixture(scope="module")
def steps(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory, expected: Outcome
) -> Counter[str]:
    """How often a device takes each step when it is not killed."""
    outcome, journal = with_process(launcher, tmp_path_factory.mktemp("process"), None)
    assert outcome == expected
    return Counter(journal.done)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", [step.__qualname__ for step in STEPS])
def test_a_device_killed_at_a_step_hands_in_the_same(
    launcher: Launcher,
    tmp_path: Path,
    steps: Counter[str],
    expected: Outcome,
    step: str,
    moment: Moment,
) -> None:
    # In the second of three rounds: it remembers something, and what it leaves will matter.
    assert steps[step] in (3, 6)
    occurrence = (steps[step] + 1) // 2
    outcome, journal = with_process(launcher, tmp_path, CrashPoint(step, occurrence, moment))
    assert journal.killed
    assert outcome == expected
