"""What happens often is said now and then, with how often it was."""

from __future__ import annotations

from hfmds.service.limits.log_throttle import Seldom


def test_each_is_said_when_it_is_time_with_how_often_it_happened() -> None:
    seldom = Seldom(every_seconds=10.0)
    assert [seldom.times("a", now) for now in (0.0, 1.0, 2.0, 10.0, 11.0)] == [1, 0, 0, 3, 0]
    assert seldom.times("b", 11.0) == 1


def test_the_first_ones_may_come_at_once() -> None:
    seldom = Seldom(every_seconds=0.5, at_once=3)
    assert [seldom.times("a", 0.0) for _ in range(5)] == [1, 1, 1, 0, 0]
    assert [seldom.times("a", 0.5) for _ in range(2)] == [3, 0]
