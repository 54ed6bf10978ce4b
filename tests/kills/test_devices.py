"""A device that is killed anywhere in its work, and started again, hands in the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from hfmds.data.packed import save_npz
from tests.kills.crash_points import CrashPoint, around
from tests.support.operator import Outcome
from tests.support.scripted_devices import STEPS, images_for
from tests.support.small_run import stage, undisturbed
from tests.support.supervision import Launcher, Supervised

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return await undisturbed(launcher, tmp_path_factory.mktemp("undisturbed"))


async def with_process(
    launcher: Launcher, folder: Path, points: Sequence[CrashPoint]
) -> tuple[Outcome, Supervised]:
    """The run with a device that is a process, killed at points and started again each time."""
    async with stage(launcher, folder) as on:
        save_npz(folder / "a.npz", images_for(on.model))
        process = Supervised(
            launcher,
            "edge_client",
            folder,
            points,
            device_id="a",
            data=str(folder / "a.npz"),
            state_dir=str(folder / "a"),
            coordinator=on.coordinator,
            store=on.store,
            retry_max_seconds="0.2",
        )
        async with process.running():
            return await on.outcome(on.device("b")), process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def steps(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory, expected: Outcome
) -> Counter[str]:
    """How often a device takes each step when it is not killed."""
    outcome, process = await with_process(launcher, tmp_path_factory.mktemp("process"), ())
    assert outcome == expected
    return Counter(process.journal.done)


@pytest.mark.matrix(one_in=2)
@pytest.mark.parametrize("step", [step.__qualname__ for step in STEPS])
async def test_a_device_killed_at_a_step_hands_in_the_same(
    launcher: Launcher,
    tmp_path: Path,
    steps: Counter[str],
    expected: Outcome,
    step: str,
) -> None:
    # In the second of three rounds: it remembers something, and what it leaves will matter.
    assert steps[step] in (3, 6)
    occurrence = (steps[step] + 1) // 2
    points = around(step, occurrence)
    outcome, process = await with_process(launcher, tmp_path, points)
    assert process.deaths == len(points)
    assert outcome == expected
