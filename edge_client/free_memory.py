"""How much memory this machine has left, as it says at every check-in. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_KIB = 1024


def free_memory_bytes(meminfo: Path = _MEMINFO) -> int:
    """Memory that new work could use, in bytes; 0: this system does not tell."""
    try:
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":  # with what the system would give back
                return int(value.split()[0]) * _KIB
    except (OSError, ValueError, IndexError):
        pass  # not Linux
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0
