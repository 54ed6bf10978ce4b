"""How long an experiment will still take."""

import pytest

from hfmds.experiments.trials.work_left import TimeLeft, TrialWork
from tests.experiments.tiny import a_trial


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def work(**changed: object) -> TrialWork:
    return TrialWork(a_trial(**changed), train_images=120, test_images=60)


def test_work_is_counted_in_images() -> None:
    # Three devices with eight images each; forty test images, forward only.
    assert work().until(1) == 3 * 8 + 0.4 * 40
    assert work().total == 4 * work().until(1)
    assert work(training__local_epochs=2).until(1) == 2 * 3 * 8 + 0.4 * 40
    # From round 2 on there is a pool: twice the images; and the refresh itself.
    hfmds = work(method="hfmds")
    assert hfmds.until(1) == work().until(1)
    assert hfmds.until(3) - hfmds.until(2) == 2 * 3 * 8 + 0.4 * 40
    assert hfmds.until(2) - hfmds.until(1) > hfmds.until(3) - hfmds.until(2)


def test_time_left_follows_from_the_speed() -> None:
    clock = Clock()
    left = TimeLeft({"a": work(), "b": work()}, workers=1, clock=clock)
    assert left.seconds() is None
    left.started("a")
    clock.now = 100.0  # a slow start says nothing of the speed
    left.round_done("a", 1)
    assert left.seconds() is None
    clock.now = 102.0
    left.round_done("a", 2)
    assert left.seconds() == pytest.approx(2.0 * (2 + 4))
    assert left.share_done == pytest.approx(2 / 8)
    left.ended("a")
    assert left.seconds() == pytest.approx(2.0 * 4)


def test_workers_share_the_work_but_not_a_trial() -> None:
    clock = Clock()
    left = TimeLeft({name: work() for name in "abc"}, workers=3, clock=clock)
    left.started("a")
    left.round_done("a", 1)
    clock.now = 2.0
    left.round_done("a", 2)
    # 2 + 4 + 4 rounds at 2 seconds by three workers: but one of 4 rounds takes 8 seconds.
    assert left.seconds() == pytest.approx(8.0)
