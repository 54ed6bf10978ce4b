"""Says now and then what happens often, so that nobody can fill a log by making it happen."""

from __future__ import annotations

from collections import Counter

from hfmds.service.limits.rate import Rate


class Seldom:
    """Counts what happens, each by its name, until it is time to say it again.

    Used by several threads at once, it may miscount, and nothing worse.
    """

    def __init__(self, every_seconds: float, at_once: int = 1) -> None:
        """Each may be said so many times at once, and then after so many seconds again."""
        self._rate = Rate(1 / every_seconds, at_once * every_seconds)
        self._unsaid: Counter[str] = Counter()

    def times(self, what: str, now: float) -> int:
        """It has happened: how often since it was said last, if it is to be said now; else 0."""
        self._unsaid[what] += 1
        return self._unsaid.pop(what, 1) if self._rate.takes(what, now) else 0
