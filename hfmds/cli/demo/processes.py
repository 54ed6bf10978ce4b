"""A small supervisor: child processes that are watched, and that never outlive us.

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
    """A child process ended although nobody asked it to."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process we started, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> str | None:
        """How it ended, in words; None while it runs."""
        if self.process.returncode is not None:
            return "stopped"
        # WNOWAIT leaves a zombie, which keeps the pid ours: `signal_group` can hit no stranger.
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return f"exit code {found.si_status}"
        return f"killed by {signal.Signals(found.si_status).name}"

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child and to whatever it started."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def last_log_lines(self, count: int = _SHOWN_LOG_LINES) -> str:
        """The end of its output, to show when it died."""
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, maxlen=count)).rstrip()


class Supervisor:
    """Starts children and, on exit from the `with` block, leaves none of them.

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
        """Start a child; its output goes to `<name>.log`. The command begins with a full path."""
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
                said = child.last_log_lines()
                raise ChildDied(
                    f"{child.name} ended by itself ({end})"
                    + (f"; the end of its log:\n{said}" if said else "; its log is empty")
                )

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; ChildDied, and `work` cancelled, if a child ends before it."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self.check()
                await asyncio.wait({task}, timeout=_POLL_SECONDS)
            if task.exception() is not None:
                # Most often because a child has just died, which says more than its consequence.
                await asyncio.sleep(_POLL_SECONDS)
                self.check()
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    def stop(self) -> None:
        """Stop all children: SIGTERM, then after the grace SIGKILL for what is left of them."""
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
