"""A fleet of any size comes back evenly, and a small fleet soon."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest

from hfmds.service.limits.retry_schedule import RetrySchedule


def check_ins(
    schedule: RetrySchedule,
    arrivals: list[tuple[float, str]],
    until: float,
    late_seconds: float = 0.0,
) -> Counter[int]:
    """Simulate devices that never find work; return the check-ins of each second.

    Each device is up to `late_seconds` late.
    """
    draw, queue, by_second = random.Random(0), list(arrivals), Counter[int]()
    heapq.heapify(queue)
    while queue and queue[0][0] < until:
        now, device = heapq.heappop(queue)
        by_second[int(now)] += 1
        wait = schedule.retry_seconds(device, now) + draw.uniform(0, late_seconds)
        heapq.heappush(queue, (now + wait, device))
    return by_second


@pytest.mark.parametrize("late_seconds", [0.0, 2.0])
def test_ten_thousand_devices_that_come_at_once_come_evenly_from_then_on(
    late_seconds: float,
) -> None:
    devices = [(0.0, f"device-{i}") for i in range(10_000)]
    by_second = check_ins(RetrySchedule(100, 5), devices, 1000.0, late_seconds)
    assert by_second.pop(0) == 10_000  # nobody could tell them before
    # They are asked back from the fifth second on, and everyone within a hundred seconds.
    per_second = [by_second[second] for second in range(8, 1000)]
    mean = sum(per_second) / len(per_second)
    assert mean == pytest.approx(100, rel=0.05)
    assert max(per_second) <= 1.5 * mean
    assert min(per_second) >= 0.5 * mean


def test_a_fleet_that_grows_through_the_day_never_exceeds_the_rate_but_by_newcomers() -> None:
    devices = [(i / 50, f"device-{i}") for i in range(10_000)]  # 50 more each second
    by_second = check_ins(RetrySchedule(100, 5), devices, 400.0)
    assert max(by_second.values()) <= 100 + 50 + 1


def test_in_a_small_fleet_everyone_comes_back_as_soon_as_may_be() -> None:
    schedule = RetrySchedule(100, 5)
    waits = [schedule.retry_seconds(f"device-{i}", 1000.0) for i in range(10)]
    assert waits[0] == 5
    assert waits == pytest.approx([5 + i / 100 for i in range(10)])
    # When they do, they find the same again.
    assert schedule.retry_seconds("device-0", 1005.5) == 5


def test_a_device_that_comes_too_early_keeps_its_place_and_pushes_nobody_back() -> None:
    schedule = RetrySchedule(1, 5)
    for i in range(20):
        schedule.retry_seconds(f"device-{i}", 0.0)
    for _ in range(1000):
        assert schedule.retry_seconds("device-19", 1.0) == pytest.approx(23.0)
    assert schedule.retry_seconds("newcomer", 1.0) == pytest.approx(24.0)


def test_places_of_the_past_are_forgotten() -> None:
    schedule = RetrySchedule(1000, 1)
    for second in range(100):
        for i in range(100):
            schedule.retry_seconds(f"device-{second}-{i}", 10.0 * second)
    assert len(schedule._reserved) <= 1000
