"""Parts of the metrics that are asked anew at every scrape, of a database that may be away.

A scrape does not wait for them for long, and goes without those that are missing: what the process
counts by itself is worth most while others fail.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 2.5  # with each part: whoever scrapes has ten, as a rule


class Described(Protocol):
    """A collector that can say what it has without asking for it."""

    def describe(self) -> Iterable[Metric]:
        """Its metrics, without their values."""

    def collect(self) -> Iterable[Metric]:
        """Its metrics as they are now."""


class ScrapeParts:
    """The parts of a program's metrics that may be missing, asked in one thread of their own."""

    def __init__(self, program: str, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._failures = Counter(
            f"hfmds_{program}_scrape_failures_total",
            "Times that a part of the metrics was missing at a scrape, as the database was away or "
            "too slow.",
            ("part",),
            registry=registry,
        )

    def add(self, part: str, collector: Described) -> None:
        """Show what is collected there."""
        self._registry.register(Surviving(part, collector, self._thread, self._failures))


class Surviving(Collector):
    """A part of the metrics that may fail or hang, and is missing in the scrape then.

    Of one that takes longer than a scrape waits, the next scrape shows what was found.
    """

    def __init__(
        self,
        part: str,
        collector: Described,
        thread: Executor,
        failures: Counter,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._part = part
        self._collector = collector
        self._thread = thread
        self._failures = failures.labels(part)
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._under_way: Future[list[Metric]] | None = None
        self._is_missing = False

    def describe(self) -> Iterable[Metric]:
        return self._collector.describe()

    def collect(self) -> Iterator[Metric]:
        try:
            found = self._find()
        except Exception as error:  # noqa: BLE001  # whoever waits for it gets it
            self._failures.inc()
            if not self._is_missing:
                why = str(error) or type(error).__name__
                log.warning(
                    "metrics of %s are missing, and will be asked again: %s", self._part, why
                )
            self._is_missing = True
            return
        self._is_missing = False
        yield from found

    def _find(self) -> list[Metric]:
        """What there is now; if that takes too long, what came too late for the scrape before."""
        asked, late = self._ask()
        try:
            found = asked.result(self._patience_seconds)
        except TimeoutError:
            if asked.done() or late is None or late.exception():
                raise
            return late.result()
        with self._lock:
            if self._under_way is asked:
                self._under_way = None
        return found

    def _ask(self) -> tuple[Future[list[Metric]], Future[list[Metric]] | None]:
        """What is being found, not asked anew if it hangs; and what nobody has waited for."""
        with self._lock:
            late = None
            if self._under_way is not None and self._under_way.done():
                late, self._under_way = self._under_way, None
            if self._under_way is None:
                self._under_way = self._thread.submit(lambda: list(self._collector.collect()))
            return self._under_way, late
