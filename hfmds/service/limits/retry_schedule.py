"""When callers that are sent away should ask again, so that a large fleet comes evenly.

Each of them reserves the next free place in time; places are one by one at the rate that a server
is meant to bear. So a fleet of any size comes back at no more than that rate, and a small one as
soon as it may. Knows no clock and no network.
"""

from __future__ import annotations

_FORGET_ABOVE = 1000  # places of the past are looked for when there are so many


class Pace:
    """Reserves places in time for callers; not thread-safe."""

    def __init__(
        self, per_second: float, least_seconds: float, most_seconds: float = float("inf")
    ) -> None:
        """At most so many calls per second, and none sooner than after `least_seconds`.

        None later than after `most_seconds`, either: where there are more callers than that has
        places for, they share them.
        """
        self._between_seconds = 1.0 / per_second
        self.least_seconds = least_seconds
        self._most_seconds = most_seconds
        self._next_free = float("-inf")
        self._reserved: dict[str, float] = {}
        self._forget_above = _FORGET_ABOVE

    def retry_seconds(self, caller: str, now: float) -> float:
        """After how many seconds a caller, known by a name, should ask again."""
        place = self._reserved.get(caller)
        if place is None or place <= now:
            place = max(self._next_free, now + self.least_seconds)
            if place > now + self._most_seconds:
                place = now + self.least_seconds
            self._next_free = place + self._between_seconds
            self._reserved[caller] = place
            self._forget(now)
        # One that came before its time keeps its place, or it could push all others back.
        return max(self.least_seconds, place - now)

    def _forget(self, now: float) -> None:
        if len(self._reserved) > self._forget_above:
            self._reserved = {name: place for name, place in self._reserved.items() if place > now}
            # Looking costs as much as there are: next when they have doubled.
            self._forget_above = max(_FORGET_ABOVE, 2 * len(self._reserved))
