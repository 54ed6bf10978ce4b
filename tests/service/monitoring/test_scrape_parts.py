"""Scrapes while what they ask hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily

from hfmds.service.monitoring.scrape_parts import Surviving


class Hanging:
    """Answers with how often it was asked, once it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = threading.Semaphore(0)

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("asked", "How often.")

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        asked = self.asked
        assert self.answer.acquire(timeout=60)
        yield GaugeMetricFamily("asked", "How often.", value=asked)


def test_a_scrape_does_not_wait_for_what_hangs_and_the_next_one_shows_what_came_late() -> None:
    hanging = Hanging()
    failures = Counter("failures", "Failures.", ("part",), registry=CollectorRegistry())
    with ThreadPoolExecutor(1) as thread:
        surviving = Surviving("census", hanging, thread, failures, patience_seconds=0.01)

        def shown() -> list[float]:
            return [family.samples[0].value for family in surviving.collect()]

        def answered() -> None:
            hanging.answer.release()
            thread.submit(bool).result()  # behind the one that was let go

        assert shown() == shown() == []
        assert hanging.asked == 1
        answered()
        assert shown() == [1]  # late, as another one is under way
        assert shown() == []
        answered()
        assert shown() == [2]
        assert failures.labels("census")._value.get() == 3
        hanging.answer.release(2)


def test_what_is_there_in_time_comes_before_what_came_late() -> None:
    hanging = Hanging()
    failures = Counter("failures", "Failures.", ("part",), registry=CollectorRegistry())
    with ThreadPoolExecutor(1) as thread:
        slow = Surviving("census", hanging, thread, failures, patience_seconds=0.01)
        assert list(slow.collect()) == []
        hanging.answer.release(3)
        thread.submit(bool).result()
        slow._patience_seconds = 60
        for asked in (2, 3):
            (family,) = slow.collect()
            assert family.samples[0].value == asked
