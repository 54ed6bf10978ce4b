"""Simulated devices on all cores: worker processes with one thread each, for a `LocalFleet`.

Small batches gain little from a second thread; a second device at the same time gains all there is.
The results are those of one thread in this process, to the bit, however many workers there are.
How tasks and results pass between processes is in `handover`.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from hfmds.algorithm.local_work import LocalWork, Synthesis, TrainedModel
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.simulation.shared_arrays import Delivery, Desk, Parcel, Shelf
from hfmds.domain.methods import TaskKind
from hfmds.errors import HfmdsError, InvalidInput, Unavailable, WrongState

_AHEAD = 4  # tasks per worker that may be under way or done before the first of them is taken


class ProcessWorkers:
    """Workers for a `LocalFleet`; close them, or use them in a `with`.

    A script that makes them needs the usual `if __name__ == "__main__":`. They know the networks of
    installed packages, but none that was only registered in this process.
    """

    def __init__(self, processes: int | None = None) -> None:
        """As many processes, or one per core that this process may use."""
        count = len(os.sched_getaffinity(0)) if processes is None else processes
        if count < 1:
            raise InvalidInput(f"{count} worker processes: there must be at least 1")
        self._folder = tempfile.TemporaryDirectory(prefix="hfmds-")
        self._shelf = Shelf(Path(self._folder.name))
        self._workers = [self._start(number) for number in range(count)]
        self._under_way: deque[_Task] = deque()  # of the phase begun last

    def _start(self, number: int) -> _Worker:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        ours, theirs = context.Pipe()
        desk = Path(self._folder.name) / f"worker-{number}"
        process = context.Process(target=_serve, args=(theirs, desk), daemon=True)
        process.start()
        theirs.close()  # so that a dead worker's end is closed, and its silence noticed
        return _Worker(process, ours)

    def __enter__(self) -> ProcessWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and remove what was handed to them."""
        for worker in self._workers:
            worker.connection.close()  # which ends it
        for worker in self._workers:
            worker.process.join()
        self._workers = []
        self._folder.cleanup()

    def train(self, works: Iterable[LocalWork]) -> Iterator[TrainedModel]:
        return self._perform("train", works)

    def synthesise(self, works: Iterable[LocalWork]) -> Iterator[Synthesis]:
        return self._perform("synthesise", works)

    def _perform(self, phase: TaskKind, works: Iterable[LocalWork]) -> Iterator[Any]:
        """Each task's result, in the order of the tasks; its error is raised in its place."""
        under_way = self._begin_phase()
        parcels = (self._shelf.place(work) for work in works)
        ready = next(parcels, None)
        try:
            while ready or under_way:
                if self._under_way is not under_way:
                    raise WrongState("another phase has begun; take all results of one first")
                _receive(under_way)
                for worker in self._idle(under_way):
                    if ready is None or len(under_way) >= _AHEAD * len(self._workers):
                        break
                    worker.send((phase, ready))
                    under_way.append(_Task(worker))
                    ready = next(parcels, None)  # so that the next idle worker need not wait for it
                # Only now, when the workers have what to do, is there time for their results.
                for task in under_way:
                    task.collect()
                if under_way[0].answered:
                    yield under_way.popleft().result()
        finally:  # also when nobody wants the rest
            _drain(under_way)

    def _begin_phase(self) -> deque[_Task]:
        """A new list of tasks, with idle workers: what an earlier phase left is waited for."""
        if not self._workers:
            raise WrongState("these workers are closed; make new ones")
        _drain(self._under_way)
        self._workers = [
            worker if worker.process.is_alive() else self._start(number)
            for number, worker in enumerate(self._workers)
        ]
        self._shelf.begin_phase()
        self._under_way = deque()
        return self._under_way

    def _idle(self, under_way: Iterable[_Task]) -> list[_Worker]:
        busy = [task.worker for task in under_way if not task.answered]
        return [worker for worker in self._workers if worker not in busy]


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection

    def send(self, task: object) -> None:
        with self._alive():
            self.connection.send(task)

    def receive(self) -> object:
        with self._alive():
            return self.connection.recv()

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            self.process.join()
            raise Unavailable(
                f"a worker process ended with code {self.process.exitcode}; if memory ran out, "
                "use fewer workers"
            ) from None


class _Task:
    """A task that was given to a worker."""

    def __init__(self, worker: _Worker) -> None:
        self.worker = worker
        self.answered = False
        self._answer: object = None

    def receive(self) -> None:
        """Take the answer, waiting for it."""
        self._answer = self.worker.receive()
        self.answered = True

    def collect(self) -> None:
        """Take a result off the worker's desk, before the worker has the task after next."""
        if isinstance(self._answer, Delivery):
            self._answer = self._answer.collect()

    def result(self) -> object:
        if isinstance(self._answer, HfmdsError):
            raise self._answer
        if isinstance(self._answer, _Fault):
            raise RuntimeError(f"a worker process failed:\n{self._answer.trace}")
        return self._answer


def _drain(tasks: Iterable[_Task]) -> None:
    """Take answers that nobody waits for, so that the next ones are of the next tasks."""
    for task in tasks:
        if not task.answered:
            with contextlib.suppress(Unavailable, OSError):  # gone, or closed: no answer comes
                task.receive()


def _receive(tasks: Sequence[_Task]) -> None:
    """Take the answers that are there, waiting for one if the first task has none."""
    open_ones = {task.worker.connection: task for task in tasks if not task.answered}
    must_wait = bool(tasks) and not tasks[0].answered
    for connection in wait(open_ones, None if must_wait else 0):
        open_ones[cast(Connection, connection)].receive()


@dataclass(frozen=True, slots=True)
class _Fault:
    """An error that is not the task's but ours."""

    trace: str


# --- in a worker --------------------------------------------------------------------------------


def _serve(connection: Connection, path: Path) -> None:
    """Do tasks until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the other side closes
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # or Python's collector looks at all that torch has loaded, again and again
    desk = Desk(path)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            phase, parcel = connection.recv()
            connection.send(_answer(phase, parcel, desk))


def _answer(phase: TaskKind, parcel: Parcel, desk: Desk) -> object:
    try:
        work = parcel.open()
        if phase == "synthesise":
            return method_of(work.recipe).synthesise(work)
        return desk.deliver(method_of(work.recipe).train(work))
    except HfmdsError as error:
        return error
    except Exception:  # noqa: BLE001 (onnxruntime has no better one)
        return _Fault(traceback.format_exc())
