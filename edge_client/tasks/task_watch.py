"""Watches a computation for the owner: its progress and its memory."""

from __future__ import annotations

from edge_client.console import StatusLine
from edge_client.device.memory_limit import MemoryLimit


class TaskWatch:
    """Shows the progress of a computation, and ends it if it needs too much memory."""

    def __init__(self, memory: MemoryLimit, line: StatusLine) -> None:
        self._memory = memory
        self._line = line

    def show(self, text: str) -> None:
        """Show the progress on the terminal."""
        self._line.show(text)

    def check(self, what: str) -> None:
        """Raise LimitExceeded if this process holds too much memory."""
        self._memory.check(what)
