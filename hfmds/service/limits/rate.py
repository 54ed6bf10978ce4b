"""How often something may happen, for each of many callers. Knows no clock and no network."""

from __future__ import annotations

_FORGET_ABOVE = 1000  # callers that were quiet long enough are looked for when there are so many


class Rate:
    """So many per second for each caller, in bursts of what `burst_seconds` allow; one thread's.

    Of a caller only the time is kept at which it will have been quiet long enough for a whole
    burst (the generic cell rate algorithm).
    """

    def __init__(self, per_second: float, burst_seconds: float) -> None:
        self._each_seconds = 1.0 / per_second
        self._burst_seconds = burst_seconds
        self._quiet_at: dict[str, float] = {}
        self._forget_above = _FORGET_ABOVE

    def takes(self, caller: str, now: float) -> bool:
        """Whether this caller may, now; if so, it is counted."""
        quiet_at = max(self._quiet_at.get(caller, now), now) + self._each_seconds
        if quiet_at - now > self._burst_seconds:
            return False
        self._quiet_at[caller] = quiet_at
        if len(self._quiet_at) > self._forget_above:
            self._forget(now)
        return True

    def _forget(self, now: float) -> None:
        self._quiet_at = {who: at for who, at in self._quiet_at.items() if at > now}
        # Looking costs as much as there are: next when they have doubled.
        self._forget_above = max(_FORGET_ABOVE, 2 * len(self._quiet_at))
