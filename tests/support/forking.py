"""Processes that are forked from one that has imported the programs already.

Importing takes seconds of a processor, more than all else that most tests have a program do. Each
is a process of its own all the same: with its own environment, log and end. That the programs also
start from nothing is shown by the tests of the demo and of each program.

`serve` is the end that forks. It takes one order a line, as JSON: {"start": {...}} is answered with
the process's id, {"poll": id} with its exit code or null. Its processes end with it, when its input
does. `Forks` is the other end. `python -m tests.support.forking` forks any module as a program.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kills.crash_points import REPOSITORY

_LOOK_SECONDS = 0.01
_IMPORTED = ("coordinator.__main__", "edge_client.__main__", "synthesis_store.__main__")
_IMPORTED_LATE = (  # by them, when they need it
    "edge_client.engines.torch_engine",
    "hfmds.algorithm.evaluation",
    "hfmds.algorithm.methods.method_registry",
    "hfmds.service.monitoring.otel",
    "hfmds.storage.migrations",
)


class Forks:
    """Has processes forked by a module that serves; they end with it, or with this process."""

    def __init__(self, module: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HFMDS_")}
        self._one_at_a_time = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=REPOSITORY,
            env={**inherited, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End all processes."""
        self._process.communicate(timeout=30)

    def start(self, order: dict[str, Any]) -> Fork:
        """Fork a process that does what is ordered, and writes into the file `order["log"]`."""
        return Fork(self, self._ask("start", order))

    def exit_code(self, process_id: int) -> int | None:
        code: int | None = self._ask("poll", process_id)
        return code

    def _ask(self, what: str, argument: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps({what: argument}) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


class Fork:
    """One process, as far as a `subprocess.Popen` is needed."""

    def __init__(self, forks: Forks, process_id: int) -> None:
        self.pid = process_id
        self.returncode: int | None = None
        self._forks = forks

    def poll(self) -> int | None:
        """Its exit code; negative if a signal ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._forks.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Its exit code, when it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"process {self.pid} has not ended in {timeout} s")
            time.sleep(_LOOK_SECONDS)
        return code

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:  # its id is nobody else's until it was polled
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it at once; returns when it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait(30)


def serve(become: Callable[[dict[str, Any]], None]) -> None:
    """Fork for every order, until there are no more; a fork does as ordered and ends."""
    gc.freeze()  # or every fork would look through all that torch brings, and copy it
    running: set[int] = set()
    ended: dict[int, int] = {}
    for line in sys.stdin:
        answer: int | None = None
        match json.loads(line):
            case {"start": order}:
                answer = os.fork()
                if answer == 0:
                    _redirect(Path(order["log"]))
                    become(order)
                    sys.exit()  # as any program does: its exit handlers are run
                running.add(answer)
            case {"poll": process_id}:
                if process_id in running:
                    found, status = os.waitpid(process_id, os.WNOHANG)
                    if found:
                        running.discard(found)
                        ended[found] = os.waitstatus_to_exitcode(status)
                answer = ended.get(process_id)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    for process_id in running:
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(process_id, 0)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _run_module(order: dict[str, Any]) -> None:
    """Be what `python -m MODULE` is, in the environment that was ordered."""
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["module"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in (*_IMPORTED, *_IMPORTED_LATE):
        importlib.import_module(name)
    for name in _IMPORTED:
        del sys.modules[name]  # it is run, which it can be only once by this name
    serve(_run_module)
