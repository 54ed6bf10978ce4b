"""How long the rounds of a run spend in which phase."""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.metrics import Metrics
from hfmds.wire.types import Phase


class RoundWatch:
    """Times the phases of one run, one after the other. Used by the run's driver thread alone."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._phase: Phase | None = None
        self._since = 0.0

    def enter(self, phase: Phase) -> None:
        """The round is in this phase now; in which it may have been before."""
        if phase is not self._phase:
            self.leave()
            self._phase, self._since = phase, self._clock()

    def leave(self) -> None:
        """The phase is over, if there is one."""
        if self._phase:
            self._metrics.phase_ended(self._phase, self._clock() - self._since)
            self._phase = None
