"""Runs trials in parallel, in worker processes with one trial at a time.

The pool replaces a worker that dies (out of memory, killed) and tries its trial once more from the
checkpoint. Leaving the pool stops the workers; each saves the last completed round first.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType

from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.worker import Event, RoundDone, TrialBroke, WorkerSetup, work

_ATTEMPTS = 2
_STOP_SECONDS = 20.0  # to save a checkpoint


@dataclass(eq=False, slots=True)
class _TrialWorker:
    process: SpawnProcess
    connection: Connection
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A worker has begun or resumed a trial."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment without an event."""


class TrialPool:
    """Runs trials in worker processes. Use it in a `with` block, in the main thread."""

    def __init__(self, setup: WorkerSetup, workers: int) -> None:
        self._setup = setup
        self._wanted = workers
        self._workers: list[_TrialWorker] = []
        # spawn, not fork: torch's threads do not survive a fork.
        self._context = multiprocessing.get_context("spawn")

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_STOP_SECONDS)
            worker.process.kill()
            worker.connection.close()

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
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(theirs, self._setup), daemon=True)
        # Children inherit this: Ctrl-C must not kill a worker that is still importing.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()  # so that this end notices when the worker's end closes
        return _TrialWorker(process, ours)

    def _bury(
        self, worker: _TrialWorker, waiting: deque[Trial], deaths: Counter[str]
    ) -> TrialBroke | None:
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        trial = worker.trial
        if trial is None:
            return None
        deaths[trial.trial_id] += 1
        if deaths[trial.trial_id] < _ATTEMPTS:
            waiting.appendleft(trial)
            return None
        how = f"its process ended with code {worker.process.exitcode}, {_ATTEMPTS} times"
        return TrialBroke(trial.trial_id, f"{how}; is there enough memory for --workers?")
