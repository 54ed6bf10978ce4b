"""The completed rounds of the runs that somebody watches, as the page shows them.

A completed round never changes, and a run may have ten thousand rounds. So this cache reads each
round once, not for every reader and every new round.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime

from cachetools import LRUCache

from coordinator.runs.runs import Runs
from coordinator.web.shapes import Shape, round_shape
from hfmds.domain.runs import Run

_KEPT_RUNS = 4  # a run of ten thousand rounds takes about 15 MB


@dataclass(frozen=True, slots=True)
class History:
    """All rounds of one run, in order, and the cohort of the last round."""

    rounds: list[Shape] = field(default_factory=list)
    cohort: tuple[str, ...] = ()


class Histories:
    """The histories of the last runs that somebody asked for. Thread-safe; blocks."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        # The time tells a run from an earlier run of the same id.
        self._kept: LRUCache[tuple[str, datetime], History] = LRUCache(_KEPT_RUNS)

    def of(self, run: Run) -> History:
        """Return the history of a run up to now."""
        key = run.run_id, run.created_at
        with self._lock:
            history = self._kept.get(key, History())
            after = history.rounds[-1]["number"] if history.rounds else 0
            new_rounds = self._runs.rounds(run.run_id, after)
            if new_rounds:
                rounds = [*history.rounds, *map(round_shape, new_rounds)]
                # A new object: readers of the old one can go on reading.
                history = History(rounds, new_rounds[-1].device_ids)
            self._kept[key] = history
            return history
