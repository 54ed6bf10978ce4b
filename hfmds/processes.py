"""Child programs: this process starts them, watches them and ends them.

Each child gets a new session, so Ctrl-C reaches only this process. This process then stops its
children in order. On Linux the kernel kills a child when this process dies, even by `kill -9`.
This module knows nothing of what the children do.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hfmds.errors import HfmdsError

T = TypeVar("T")

_POLL_SECONDS = 0.05
_SHOWN_LOG_LINES = 12

# Asks the kernel to kill this process with its parent, then becomes the command. It is a program,
# because a hook between fork and exec is not safe once the parent has threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; survives exec
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent died before
        sys.exit(1)
os.execv(command[0], command)
"""


class ChildDied(HfmdsError):
    """A child process ended by itself."""


@dataclass(frozen=True, slots=True)
class Child:
    """A started program and the file of its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def exit_code(self) -> int | None:
        """Return the exit code, or minus the signal that killed it; None while it runs."""
        return self._end(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end; return the exit code, or minus the signal that killed it."""
        code = self._end(0)
        assert code is not None
        return code

    def describe_end(self) -> str:
        """Say how the ended program ended, with its last output."""
        code = self.wait()
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        output = self.last_output()
        log = f"the end of its log:\n{output}" if output else "its log is empty"
        return f"{self.name} ended by itself ({how}); {log}"

    def last_output(self, lines: int = _SHOWN_LOG_LINES) -> str:
        """Return the last lines of the output."""
        with self.log.open(errors="replace") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and to its own children."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _end(self, options: int) -> int | None:
        if self.process.returncode is not None:
            return self.process.returncode
        # WNOWAIT leaves a zombie, which keeps the pid: `signal_group` cannot hit another process.
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | options)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class Supervisor:
    """Starts children and ends all of them when its `with` block ends.

    A thread that starts a child must live as long as the child: Linux ends the child with it.
    """

    def __init__(self, log_folder: Path, grace_seconds: float = 5.0) -> None:
        self._log_folder = log_folder
        self._grace_seconds = grace_seconds
        self._children: list[Child] = []

    def __enter__(self) -> Supervisor:
        self._log_folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        open_files: Collection[int] = (),
    ) -> Child:
        """Start a child with its output in `<name>.log`. The command begins with a full path.

        The child inherits the `open_files`.
        """
        log = self._log_folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(open_files),
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raise ChildDied if a child has ended."""
        for child in self._children:
            if child.exit_code() is not None:
                raise ChildDied(child.describe_end())

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; cancel it and raise ChildDied if a child ends first."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self.check()
                await asyncio.wait({task}, timeout=_POLL_SECONDS)
            if task.exception() is not None:
                # If a child has just died, its error says more than the consequence.
                await asyncio.sleep(_POLL_SECONDS)
                self.check()
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    def stop(self) -> None:
        """Stop all children: SIGTERM, then SIGKILL after the grace time."""
        for child in self._children:
            child.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_seconds
        while time.monotonic() < deadline and any(c.exit_code() is None for c in self._children):
            time.sleep(_POLL_SECONDS)
        for child in self._children:
            child.signal_group(signal.SIGKILL)
        for child in self._children:
            child.process.wait()
        self._children.clear()


def die_with_parent() -> None:
    """End this process with the one that started it; for workers of `multiprocessing`."""
    parent = multiprocessing.parent_process()
    assert parent, "this process has no parent of `multiprocessing`"
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
