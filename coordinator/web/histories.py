"""The completed rounds of the runs that somebody looks at, as the page is told of them.

A completed round never changes, and there may be ten thousand of them: each is read once, and not
again for everybody who looks and at every new one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

from coordinator.runs.runs import Runs
from coordinator.web.shapes import Shape, round_shape
from hfmds.domain.runs import Run

_KEPT = 4  # runs; one of ten thousand rounds takes about 15 MB


@dataclass(slots=True)
class History:
    """All rounds of one run, in order, and who was in the last."""

    rounds: list[Shape] = field(default_factory=list)
    cohort: tuple[str, ...] = ()


class Histories:
    """Thread-safe; blocks."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        # The time tells a run from another one that had its id.
        self._kept: OrderedDict[tuple[str, datetime], History] = OrderedDict()

    def of(self, run: Run) -> History:
        """The history of a run, up to now."""
        with self._lock:
            history = self._kept.setdefault((run.run_id, run.created_at), History())
            self._kept.move_to_end((run.run_id, run.created_at))
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            after = history.rounds[-1]["number"] if history.rounds else 0
            fresh = self._runs.rounds(run.run_id, after)
            if not fresh:
                return history
            rounds = [*history.rounds, *map(round_shape, fresh)]
            # Another one, so that who was given the last can go on reading it.
            history = History(rounds, fresh[-1].device_ids)
            self._kept[run.run_id, run.created_at] = history
            return history
