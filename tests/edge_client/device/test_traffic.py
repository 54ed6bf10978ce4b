"""The daily traffic limit, across restarts and wrong clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.device.traffic import TrafficBudget
from hfmds.errors import LimitExceeded

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def budget(folder: Path, clock: Clock, limit: int | None = 100) -> TrafficBudget:
    return TrafficBudget(folder / "traffic.json", limit, clock)


def test_without_a_limit_nothing_is_counted(tmp_path: Path, clock: Clock) -> None:
    free = budget(tmp_path, clock, limit=None)
    free.require(10**12)
    free.add(10**12)
    assert free.refusal() is None
    assert list(tmp_path.iterdir()) == []


def test_work_beyond_the_limit_is_refused(tmp_path: Path, clock: Clock) -> None:
    one = budget(tmp_path, clock)
    one.require(100)
    one.add(60)
    assert one.refusal() is None
    with pytest.raises(LimitExceeded, match=r"41 bytes.*100 a day 40.*HFMDS_TRAFFIC"):
        one.require(41)
    assert "60 of 100 bytes" in (one.refusal() or "")  # the next task needs the same amount
    clock.now += 24 * HOUR
    assert one.refusal() is None


def test_a_day_that_is_used_up_ends(tmp_path: Path, clock: Clock) -> None:
    one = budget(tmp_path, clock)
    clock.now += 20 * HOUR
    one.add(130)  # an upload may exceed the limit
    assert "the next day begins in 4.0 hours" in (one.refusal() or "")
    clock.now += 4 * HOUR
    one.require(100)


def test_the_count_survives_a_restart(tmp_path: Path, clock: Clock) -> None:
    budget(tmp_path, clock).add(70)
    clock.now += HOUR
    again = budget(tmp_path, clock)
    with pytest.raises(LimitExceeded, match="30 are left"):
        again.require(31)


def test_the_count_is_not_written_for_every_chunk(tmp_path: Path, clock: Clock) -> None:
    one, path = budget(tmp_path, clock, limit=1000), tmp_path / "traffic.json"
    written = []
    for _ in range(105):
        one.add(1)
        written.append(path.read_bytes() if path.exists() else b"")
    assert len({*written} - {b""}) == 10  # one write per hundredth of the limit
    assert budget(tmp_path, clock, limit=1000).left_bytes() == 900  # as after a kill at this point
    one.save()  # the end of the transfer
    assert budget(tmp_path, clock, limit=1000).left_bytes() == 895
    before = path.stat().st_ino
    one.save()
    assert path.stat().st_ino == before  # no transfer since


def test_a_clock_set_back_forgets_nothing_and_waits_a_day_at_most(
    tmp_path: Path, clock: Clock
) -> None:
    one = budget(tmp_path, clock)
    one.add(100)
    clock.now = 0.0  # a device without a battery for its clock
    assert "in 24.0 hours" in (one.refusal() or "")
    clock.now += 24 * HOUR
    assert one.refusal() is None


def test_a_task_beyond_a_days_limit_does_not_stop_the_device(tmp_path: Path, clock: Clock) -> None:
    one = budget(tmp_path, clock)
    with pytest.raises(LimitExceeded):
        one.require(1000)
    assert one.refusal() is None  # smaller models may fit


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"since": NaN, "spent_bytes": 100}',  # a day that would never end
        '{"since": 1, "spent_bytes": Infinity}',
        '{"since": 1, "spent_bytes": -1}',
    ],
)
def test_a_damaged_count_restarts_at_zero(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    (tmp_path / "traffic.json").write_text(content)
    budget(tmp_path, clock).require(100)
    assert "traffic.json is not readable" in caplog.text
