"""Measures how long the rounds of a run spend in each phase, as metrics and as traces."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from coordinator.monitoring.metrics import Metrics
from coordinator.monitoring.round_tracing import SPANS, phase_place, round_place
from coordinator.records.runs import RunRecord
from hfmds.domain.runs import Phase
from hfmds.service.monitoring import tracing
from hfmds.service.monitoring.tracing import OpenSpan


class RoundTimer:
    """Times the rounds of one run, one after the other. Only the run's driver thread uses it."""

    def __init__(
        self, run: RunRecord, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._metrics = metrics
        self._clock = clock
        self._number = 0
        self._round: OpenSpan | None = None
        self._phase: Phase | None = None
        self._span: OpenSpan | None = None
        self._since = 0.0
        self._entered: Counter[Phase] = Counter()

    def begin(self, number: int) -> None:
        """Begin a round; a round that has begun goes on."""
        if number != self._number:
            self.end()
            self._number = number
            place = round_place(self._run.run_uid, number)
            self._round = tracing.begin("round", place, run=self._run.run_id, round=number)

    def enter(self, phase: Phase) -> None:
        """The round has made progress in this phase; it may have been in it before."""
        self._metrics.run_progressed(self._run.run_id)
        if phase is self._phase:
            return
        self._leave()
        self._phase, self._since = phase, self._clock()
        self._entered[phase] += 1
        name, times = SPANS[phase], self._entered[phase]
        which = name if times == 1 else f"{name} {times}"  # tasks hang under the first
        place = phase_place(self._run.run_uid, self._number, which)
        self._span = tracing.begin(name, place, run=self._run.run_id, round=self._number)

    def end(self) -> None:
        """End the round, if there is one."""
        self._leave()
        if self._round:
            self._round.end()
        self._round, self._number = None, 0
        self._entered.clear()

    def _leave(self) -> None:
        if self._phase:
            self._metrics.phase_ended(self._phase, self._clock() - self._since)
        if self._span:
            self._span.end()
        self._phase = self._span = None
