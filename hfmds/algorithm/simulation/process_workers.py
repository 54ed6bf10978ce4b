"""Simulated devices on all cores: worker processes with one thread each, for a `LocalFleet`.

A small batch gains little from a second thread, but a second device at the same time gains a core.
The results are those of one thread in this process, to the bit, for any number of workers.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hfmds.algorithm.local_work import LocalWork, Synthesis, TrainedModel
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.errors import InvalidInput, Unavailable, WrongState
from hfmds.processes import die_with_parent

Result = TypeVar("Result")

_AHEAD = 4  # tasks per worker that may be begun before the first result is taken


class ProcessWorkers:
    """Workers for a `LocalFleet`, on a `ProcessPoolExecutor`. Close them, or use a `with` block.

    A script that makes them needs the usual `if __name__ == "__main__":`. The workers know the
    networks of installed packages, but none that only this process has registered.
    """

    def __init__(self, processes: int | None = None) -> None:
        """Start this many processes, or one for each core that this process may use."""
        count = len(os.sched_getaffinity(0)) if processes is None else processes
        if count < 1:
            raise InvalidInput(f"{count} worker processes: there must be at least 1")
        self._count = count
        self._executor: ProcessPoolExecutor | None = self._start()

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
        """End the processes."""
        if self._executor:
            self._executor.shutdown(cancel_futures=True)
        self._executor = None

    def train(self, works: Iterable[LocalWork]) -> Iterator[TrainedModel]:
        return self._perform(_train, works)

    def synthesise(self, works: Iterable[LocalWork]) -> Iterator[Synthesis]:
        return self._perform(_synthesise, works)

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        return ProcessPoolExecutor(self._count, mp_context=context, initializer=_prepare)

    def _perform(
        self, function: Callable[[_Task], Result], works: Iterable[LocalWork]
    ) -> Iterator[Result]:
        """Yield each task's result in the order of the tasks, or raise its error."""
        if self._executor is None:
            raise WrongState("these workers are closed; make new ones")
        futures: deque[Future[Result]] = deque()
        shared = _SharedThings()
        try:
            for work in works:
                task = _Task(
                    replace(work, weights={}, pool=None),
                    weights=shared.file_of(work.weights),
                    pool=shared.file_of(work.pool),
                )
                futures.append(self._executor.submit(function, task))
                if len(futures) == _AHEAD * self._count:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        except BrokenProcessPool:
            self._executor = self._start()
            raise Unavailable(
                "a worker process ended; if memory ran out, use fewer workers"
            ) from None
        finally:  # also when the caller does not take all results
            for future in futures:
                future.cancel()
            shared.remove()


@dataclass(frozen=True, slots=True)
class _Task:
    """A task whose weights and pool are in files."""

    rest: LocalWork
    weights: str
    pool: str

    def open(self) -> LocalWork:
        return replace(self.rest, weights=_load(self.weights), pool=_load(self.pool))


class _SharedThings:
    """What the tasks of a phase share, the weights and the pool: each is written to a file once."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hfmds-")
        self._written: dict[int, tuple[object, str]] = {}  # by id, with what has that id

    def file_of(self, thing: object) -> str:
        """Return the name of the file that holds the thing."""
        if id(thing) not in self._written:
            path = Path(self._folder.name, str(len(self._written)))
            path.write_bytes(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))
            self._written[id(thing)] = thing, str(path)
        return self._written[id(thing)][1]

    def remove(self) -> None:
        self._folder.cleanup()


# --- in a worker --------------------------------------------------------------------------------


def _prepare() -> None:
    """Prepare a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first closes
    die_with_parent()
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # the collector need not look at all that torch has loaded


@lru_cache(maxsize=2)  # the weights and the pool of a phase
def _load(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())  # noqa: S301  (this program has written it)


def _train(task: _Task) -> TrainedModel:
    work = task.open()
    return method_of(work.recipe).train(work)


def _synthesise(task: _Task) -> Synthesis:
    work = task.open()
    return method_of(work.recipe).synthesise(work)
