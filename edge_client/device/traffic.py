"""How much content this device moves in a day, if its owner sets a limit.

Weights, plans, shards, updates and batches count in both directions, those of broken transfers,
too. Small calls do not count. The count goes to disk when a transfer ends, and in a long transfer
at each hundredth of the limit: a sync for every chunk would cost more than the chunk. A killed
device forgets less than a hundredth.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hfmds.errors import LimitExceeded, Unavailable
from hfmds.storage.files import write_whole

log = logging.getLogger(__name__)

_DAY_SECONDS = 24 * 3600.0
_SAVES_PER_LIMIT = 100


class TrafficBudget:
    """The bytes of a day. A day begins with the first byte after the last day has ended.

    Uses the wall clock, because a device may be off for most of the day. A clock that is set back
    makes the day longer, by a day at most. A clock that is set forward ends the day. Thread-safe.
    """

    def __init__(
        self,
        path: Path,
        bytes_per_day: int | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`path` holds the count; without a limit nothing is counted."""
        self._path = path
        self._limit_bytes = bytes_per_day
        self._clock = clock
        self._lock = threading.Lock()
        self._since, self._spent_bytes = self._read()
        self._unsaved_bytes = 0
        self._wanted_bytes = 1  # by a task that the device gave up today

    def add(self, moved_bytes: int) -> None:
        """Count moved bytes; up to a hundredth of the limit is in memory only."""
        if self._limit_bytes is None or not moved_bytes:
            return
        with self._lock:
            self._begin_day_if_due()
            self._spent_bytes += moved_bytes
            self._unsaved_bytes += moved_bytes
            if self._unsaved_bytes * _SAVES_PER_LIMIT >= self._limit_bytes:
                self._save()

    def save(self) -> None:
        """Write the count at the end of a transfer; a full disk delays it."""
        with self._lock:
            if self._unsaved_bytes:
                self._save()

    def counted_with(self, count: Callable[[int], None]) -> Callable[[int], None]:
        """Return a function that counts moved bytes here and with another counter."""

        def moved(moved_bytes: int) -> None:
            count(moved_bytes)
            self.add(moved_bytes)

        return moved

    def require(self, needed_bytes: int) -> None:
        """Raise LimitExceeded if work would move more than is left of today."""
        if self._limit_bytes is None or needed_bytes <= self.left_bytes():
            return
        self._wanted_bytes = min(needed_bytes, self._limit_bytes)
        raise LimitExceeded(
            f"the task would move about {needed_bytes} bytes, but of this device's "
            f"{self._limit_bytes} a day {self.left_bytes()} are left; raise "
            "HFMDS_TRAFFIC_BYTES_PER_DAY, or leave such models to others"
        )

    def refusal(self) -> str | None:
        """Return why the device should not ask for work now; None if it may."""
        if self._limit_bytes is None or self.left_bytes() >= self._wanted_bytes:
            return None
        hours = (self._since + _DAY_SECONDS - self._clock()) / 3600
        return (
            f"today's traffic is used up ({self._spent_bytes} of {self._limit_bytes} bytes, "
            f"HFMDS_TRAFFIC_BYTES_PER_DAY); the next day begins in {hours:.1f} hours"
        )

    def left_bytes(self) -> int:
        """Return the bytes that are left of today."""
        with self._lock:
            self._begin_day_if_due()
            return max(0, (self._limit_bytes or 0) - self._spent_bytes)

    def _save(self) -> None:
        content = {"since": self._since, "spent_bytes": self._spent_bytes}
        try:
            write_whole(self._path, json.dumps(content).encode())
        except Unavailable as error:  # the transfer itself succeeded
            log.warning("today's traffic is counted in memory only: %s", error)
        else:
            self._unsaved_bytes = 0

    def _begin_day_if_due(self) -> None:
        now = self._clock()
        if now < self._since:  # the clock was set back
            self._since = now
        elif now >= self._since + _DAY_SECONDS:
            self._since, self._spent_bytes, self._wanted_bytes = now, 0, 1

    def _read(self) -> tuple[float, int]:
        try:
            kept = json.loads(self._path.read_bytes())
            since, spent_bytes = float(kept["since"]), int(kept["spent_bytes"])
            if not math.isfinite(since) or spent_bytes < 0:
                raise ValueError(f"{spent_bytes} bytes since {since}")
            return since, spent_bytes
        except FileNotFoundError:
            return self._clock(), 0
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
            log.warning("%s is not readable (%s), the day's count starts at 0", self._path, error)
            return self._clock(), 0
