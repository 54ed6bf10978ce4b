"""Runs trials in parallel, in worker processes with one trial at a time.

The pool replaces a worker that dies (out of memory, killed) and tries its trial once more from the
checkpoint. Leaving the pool stops the workers; each saves the last completed round first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType

from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.worker_messages import (
    Event,
    RoundDone,
    Tick,
    TrialBroke,
    TrialStarted,
    WorkerSetup,
)
from hfmds.processes import Child, Supervisor

_ATTEMPTS = 2
_STOP_SECONDS = 20.0  # to save a checkpoint


@dataclass(eq=False, slots=True)
class _TrialWorker:
    child: Child
    connection: Connection
    trial: Trial | None = None


class TrialPool:
    """Runs trials in worker processes. Use it in a `with` block, in the main thread."""

    def __init__(self, setup: WorkerSetup, workers: int) -> None:
        self._setup = setup
        self._wanted = workers
        self._workers: list[_TrialWorker] = []
        self._started = 0
        self._end = contextlib.ExitStack()

    def __enter__(self) -> TrialPool:
        logs = self._end.enter_context(tempfile.TemporaryDirectory(prefix="hfmds-workers-"))
        self._supervisor = self._end.enter_context(Supervisor(Path(logs), _STOP_SECONDS))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.close()

    def run(
        self, trials: Sequence[Trial], tick_seconds: float = 1.0
    ) -> Iterator[Event | TrialStarted | Tick]:
        """Run all trials and yield the events."""
        waiting = deque(trials)
        deaths: Counter[str] = Counter()
        while waiting or any(worker.trial for worker in self._workers):
            while len(self._workers) < min(self._wanted, self._needed(waiting)):
                self._workers.append(self._start())
            for worker in self._workers:
                if waiting and worker.trial is None:
                    worker.trial = waiting.popleft()
                    with contextlib.suppress(OSError):  # it died; the code below notices
                        worker.connection.send(worker.trial)
                    yield TrialStarted(worker.trial.trial_id)
            ready = wait([worker.connection for worker in self._workers], tick_seconds)
            if not ready:
                yield Tick()
            for worker in [w for w in self._workers if w.connection in ready]:
                try:
                    event: Event = worker.connection.recv()
                except (EOFError, OSError):  # it died
                    broke = self._bury(worker, waiting, deaths)
                    if broke:
                        yield broke
                    continue
                if not isinstance(event, RoundDone):
                    worker.trial = None
                yield event

    def _needed(self, waiting: deque[Trial]) -> int:
        return len(waiting) + sum(worker.trial is not None for worker in self._workers)

    def _start(self) -> _TrialWorker:
        self._started += 1
        ours, theirs = Pipe()
        with theirs:  # closed here, so that our end notices when the worker's end closes
            child = self._supervisor.start(
                f"worker {self._started}",
                [sys.executable, "-m", "hfmds.experiments.trials.worker", str(theirs.fileno())],
                os.environ,
                open_files=[theirs.fileno()],
            )
        with contextlib.suppress(OSError):  # it died; `run` notices
            ours.send(self._setup)
        return _TrialWorker(child, ours)

    def _bury(
        self, worker: _TrialWorker, waiting: deque[Trial], deaths: Counter[str]
    ) -> TrialBroke | None:
        worker.connection.close()
        self._workers.remove(worker)
        trial = worker.trial
        if trial is None:
            return None
        deaths[trial.trial_id] += 1
        if deaths[trial.trial_id] < _ATTEMPTS:
            waiting.appendleft(trial)
            return None
        return TrialBroke(
            trial.trial_id,
            f"its process ended {_ATTEMPTS} times; is there enough memory for --workers? "
            f"{worker.child.describe_end()}",
        )
