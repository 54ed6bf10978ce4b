"""A small supervisor: it watches child processes, and none of them outlives it.

Each child has its own session, so that Ctrl-C reaches us alone and we stop the children in order;
and a leash (leash.py), so that on Linux even `kill -9` of this process ends them. Knows nothing of
what the children do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hfmds.cli.demo import die_with_parent
from hfmds.errors import HfmdsError

T = TypeVar("T")

_POLL_SECONDS = 0.05
_SHOWN_LOG_LINES = 12


class ChildDied(HfmdsError):
    """A child process ended by itself."""


@dataclass(frozen=True, slots=True)
class Child:
    """A started process and the file of its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> str | None:
        """How the process ended, in words; None while it runs."""
        if self.process.returncode is not None:
            return "stopped"
        # WNOWAIT leaves a zombie, which keeps the pid: `signal_group` cannot hit another process.
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        if ended.si_code == os.CLD_EXITED:
            return f"exit code {ended.si_status}"
        return f"killed by {signal.Signals(ended.si_status).name}"

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and to its own children."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def last_log_lines(self, count: int = _SHOWN_LOG_LINES) -> str:
        """The end of the output, to show when the process died."""
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, maxlen=count)).rstrip()


class Supervisor:
    """Starts children and ends all of them when its `with` block ends.

    Start children from the main thread: the leash is tied to the thread that started the child.
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

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a child with its output in `<name>.log`. The command begins with a full path."""
        log = self._log_folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raise ChildDied if a child has ended."""
        for child in self._children:
            if (end := child.end()) is not None:
                log_end = child.last_log_lines()
                raise ChildDied(
                    f"{child.name} ended by itself ({end})"
                    + (f"; the end of its log:\n{log_end}" if log_end else "; its log is empty")
                )

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
        while time.monotonic() < deadline and any(c.end() is None for c in self._children):
            time.sleep(_POLL_SECONDS)
        for child in self._children:
            child.signal_group(signal.SIGKILL)
        for child in self._children:
            child.process.wait()
        self._children.clear()
