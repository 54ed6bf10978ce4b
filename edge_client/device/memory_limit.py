"""Memory: what the machine has left, what this process holds, and the owner's limit.

Uses the standard library only.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from hfmds.errors import LimitExceeded

_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")
_CONTAINER = Path("/sys/fs/cgroup")  # as seen from inside, with control groups of version 2
_KIB = 1024


def free_memory_bytes(meminfo: Path = _MEMINFO, container: Path = _CONTAINER) -> int:
    """Return the memory that new work could use, in bytes; 0: unknown on this system."""
    free = _free_on_machine(meminfo)
    left = _left_in_container(container)
    return min(free, left) if free and left else free or left


def _left_in_container(folder: Path) -> int:
    """Return what the container may still use; 0: no container, or no limit."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # "max" is no limit
        return 0
    return max(1, limit - used)  # 0 would mean unknown


def _free_on_machine(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":  # includes caches that the system would free
                return int(value.split()[0]) * _KIB
    except (OSError, ValueError, IndexError):
        pass  # not Linux
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0


def own_memory_bytes(statm: Path = _STATM) -> int:
    """Return what this process holds now; its peak where the system does not tell."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not Linux
        return peak_memory_bytes()


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held since its start."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB


class MemoryLimit:
    """The most memory that this process may hold, checked between the steps of a computation.

    A task that is too large fails with a reason. A limit of the system would kill the process
    instead. One step can exceed this limit; set the system's limit (MemoryMax of systemd) above it.
    """

    def __init__(
        self,
        max_bytes: int | None,
        own_bytes: Callable[[], int] = own_memory_bytes,
        free_bytes: Callable[[], int] = free_memory_bytes,
    ) -> None:
        self._max_bytes = max_bytes
        self._own_bytes = own_bytes
        self._free_bytes = free_bytes

    def left_bytes(self) -> int:
        """Return what new work may use, for the coordinator; 0: unknown on this system."""
        free = self._free_bytes()
        if self._max_bytes is None:
            return free
        # At least 1, because 0 would mean unknown.
        left = max(1, self._max_bytes - self._own_bytes())
        return min(free, left) if free else left

    def check(self, what: str) -> None:
        """Raise LimitExceeded if the process holds too much."""
        if self._max_bytes is None:
            return
        own = self._own_bytes()
        if own > self._max_bytes:
            raise LimitExceeded(
                f"{what} needs {own / 1e6:.0f} MB of memory, this device gives "
                f"{self._max_bytes / 1e6:.0f} MB; raise HFMDS_MAX_MEMORY_BYTES, or let the run ask "
                "for devices with more memory"
            )
