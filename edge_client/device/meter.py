"""Measures what a computation costs: time, processor time (roughly its energy), steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from hfmds.algorithm.local_work import Progress


class Meter:
    """Measures its block, which calls `progress` after each step.

    Processor time is that of the process over all threads: a device does one task at a time.
    `on_step` gets the seconds of a step; of steps that are reported together, the mean.
    """

    def __init__(
        self,
        progress: Progress,
        on_step: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.steps = 0
        self.seconds = self.cpu_seconds = 0.0
        self._progress = progress
        self._on_step = on_step
        self._clock = clock
        self._processor_clock = processor_clock
        self._done = 0

    def __enter__(self) -> Self:
        self._began = self._last = self._clock()
        self._processor_began = self._processor_clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = self._clock() - self._began
        self.cpu_seconds = self._processor_clock() - self._processor_began

    def progress(self, done: int, steps: int) -> None:
        """Count the steps since the last call, and pass them on."""
        now = self._clock()
        new = done - self._done if done > self._done else done  # the next part counts from 1
        if new > 0:
            self._on_step((now - self._last) / new)
            self.steps += new
        self._done, self._last = done, now
        self._progress(done, steps)
