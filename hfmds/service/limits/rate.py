"""A rate limit for each of many callers. It knows no clock and no network."""

from __future__ import annotations

_FORGET_ABOVE = 1000  # look for quiet callers only when there are more callers than this


class Rate:
    """The generic cell rate algorithm. Use it from one thread.

    It stores one number for each caller: the time at which the caller may send a full burst again.
    """

    def __init__(self, per_second: float, burst_seconds: float) -> None:
        """Allow a rate, and at once as many calls as the rate gives in `burst_seconds`."""
        self._interval_seconds = 1.0 / per_second
        self._burst_seconds = burst_seconds
        self._quiet_at: dict[str, float] = {}
        self._forget_above = _FORGET_ABOVE

    def takes(self, caller: str, now: float) -> bool:
        """Count a call, and return True, if the caller keeps to the rate."""
        quiet_at = max(self._quiet_at.get(caller, now), now) + self._interval_seconds
        if quiet_at - now > self._burst_seconds:
            return False
        self._quiet_at[caller] = quiet_at
        if len(self._quiet_at) > self._forget_above:
            self._forget_quiet_callers(now)
        return True

    def _forget_quiet_callers(self, now: float) -> None:
        self._quiet_at = {caller: at for caller, at in self._quiet_at.items() if at > now}
        # A pass costs as much as there are callers. The next one waits until they have doubled.
        self._forget_above = max(_FORGET_ABOVE, 2 * len(self._quiet_at))
