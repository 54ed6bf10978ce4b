"""Retry times for rejected callers, spread so that a large fleet comes back evenly.

Each caller reserves the next free place in time, at the rate that the server can bear. So a fleet
of any size keeps to that rate, and a small fleet comes back soon. Knows no clock and no network.
"""

from __future__ import annotations

_FORGET_ABOVE = 1000  # look for places of the past only above this number


class RetrySchedule:
    """Reserves places in time for callers. Use it from one thread."""

    def __init__(self, per_second: float, least_seconds: float) -> None:
        """Allow so many calls per second, none sooner than `least_seconds` from now."""
        self._between_seconds = 1.0 / per_second
        self.least_seconds = least_seconds
        self._next_free = float("-inf")
        self._reserved: dict[str, float] = {}
        self._forget_above = _FORGET_ABOVE

    def retry_seconds(self, caller: str, now: float) -> float:
        """Return after how many seconds the named caller should ask again."""
        place = self._reserved.get(caller)
        if place is None or place <= now:
            place = max(self._next_free, now + self.least_seconds)
            self._next_free = place + self._between_seconds
            self._reserved[caller] = place
            self._forget_past_places(now)
        # A caller that comes early keeps its place, or it could push all others back.
        return max(self.least_seconds, place - now)

    def _forget_past_places(self, now: float) -> None:
        if len(self._reserved) > self._forget_above:
            self._reserved = {name: place for name, place in self._reserved.items() if place > now}
            # A pass costs as much as there are places. The next one waits until they have doubled.
            self._forget_above = max(_FORGET_ABOVE, 2 * len(self._reserved))
