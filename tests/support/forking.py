"""Forks programs from one process that has already imported them.

Imports take seconds of processor time, more than most tests need for everything else. Each fork
still is a process with its own environment, log and exit code. The tests of the demo and of each
program show that programs also start from nothing.

`serve` forks. It reads one order per line, as JSON: it answers {"start": {...}} with the id of the
process, and {"poll": id} with its exit code or null. When its input ends, its processes end, too.
`Forks` sends the orders. `python -m tests.support.forking` forks any module as a program.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kills.crash_points import REPOSITORY
from tests.support.waiting import wait_until

_IMPORTED = ("coordinator.__main__", "edge_client.__main__", "synthesis_store.__main__")
_IMPORTED_LATE = (  # the programs import these on demand
    "edge_client.engines.torch_engine",
    "hfmds.algorithm.evaluation",
    "hfmds.algorithm.methods.method_registry",
    "hfmds.service.monitoring.otel",
    "hfmds.storage.migrations",
)


class Forks:
    """Orders forks from a serving module. The forks end with it, or with this process."""

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
        """Fork a process that executes the order and writes to the file `order["log"]`."""
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
    """One process, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, forks: Forks, process_id: int) -> None:
        self.pid = process_id
        self.returncode: int | None = None
        self._forks = forks

    def poll(self) -> int | None:
        """Return the exit code; negative after a signal; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._forks.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end, and return the exit code."""
        wait_until(lambda: self.poll() is not None, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:  # the system reuses an id only after the poll
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill the process, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait(30)


def serve(become: Callable[[dict[str, Any]], None]) -> None:
    """Fork for every order until the input ends. A fork executes its order and ends."""
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
                    sys.exit()  # runs exit handlers, as in any program
                running.add(answer)
            case {"poll": process_id}:
                if process_id in running:
                    ended_id, status = os.waitpid(process_id, os.WNOHANG)
                    if ended_id:
                        running.discard(ended_id)
                        ended[ended_id] = os.waitstatus_to_exitcode(status)
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
    """Run like `python -m MODULE`, in the environment of the order."""
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["module"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in (*_IMPORTED, *_IMPORTED_LATE):
        importlib.import_module(name)
    for name in _IMPORTED:
        del sys.modules[name]  # runpy must load it again under the name __main__
    serve(_run_module)
