"""Watches whether storage answers, so that a process that has lost it can report that.

A thread of its own makes each check. So a check may hang and hold up nothing else. One failed check
is no problem; silence that lasts is one, until the storage answers again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

log = logging.getLogger(__name__)

_CHECKS = 4  # within the silence that a process tolerates


class StorageHealth:
    """Repeats a check of one storage; the check raises when the storage does not answer."""

    def __init__(
        self,
        name: str,
        check: Callable[[], None],
        patience_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Assume that the storage answers now."""
        self._name = name
        self._check = check
        self._patience_seconds = patience_seconds
        self._monotonic = monotonic
        self._answered_at = monotonic()
        self._answers = True
        self._closed = threading.Event()

    def start(self) -> None:
        """Repeat the check in a thread until `close`."""
        # A daemon thread, because a check that hangs must not keep the process from its end.
        threading.Thread(target=self._repeat, name=f"check {self._name}", daemon=True).start()

    def close(self) -> None:
        """Stop repeating the check."""
        self._closed.set()

    def check(self) -> None:
        """Make the check once."""
        try:
            self._check()
        except Exception as error:  # noqa: BLE001  # `problem` reports it
            if self._answers:
                log.warning("%s does not answer: %s", self._name, error)
            self._answers = False
        else:
            self._answered_at = self._monotonic()
            if not self._answers:
                log.info("%s answers again", self._name)
            self._answers = True

    def problem(self) -> str | None:
        """Return what is wrong with the storage, for clients; None if nothing is."""
        silent_seconds = self._monotonic() - self._answered_at
        if silent_seconds <= self._patience_seconds:
            return None
        return f"{self._name} has not answered for {silent_seconds:.0f} s; the log has more"

    def _repeat(self) -> None:
        while not self._closed.wait(self._patience_seconds / _CHECKS):
            self.check()


@contextmanager
def watching(
    checks: Mapping[str, Callable[[], None]],
    patience_seconds: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[], str | None]]:
    """Repeat named checks inside the block; yield a function that returns the first problem."""
    watched = [
        StorageHealth(name, check, patience_seconds, monotonic) for name, check in checks.items()
    ]
    for health in watched:
        health.start()
    try:
        yield lambda: next(filter(None, (health.problem() for health in watched)), None)
    finally:
        for health in watched:
            health.close()
