"""Free memory that a device reports, and its own limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_client.device.memory_limit import MemoryLimit, free_memory_bytes, own_memory_bytes
from hfmds.errors import LimitExceeded


def test_the_estimate_of_the_system_is_used(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:  4321 kB\n")
    assert free_memory_bytes(meminfo, tmp_path) == 4321 * 1024


def test_free_memory_is_known_without_an_estimate_of_the_system(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path / "nothing") >= 0
    odd = tmp_path / "odd"
    odd.write_text("MemAvailable: unknown\n")
    assert free_memory_bytes(odd) >= 0


def test_a_container_limit_bounds_the_free_memory(tmp_path: Path) -> None:
    def free(machine_kib: int, limit: str, used: int) -> int:
        (tmp_path / "meminfo").write_text(f"MemAvailable: {machine_kib} kB\n")
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        return free_memory_bytes(tmp_path / "meminfo", tmp_path)

    assert free(10, "3000", 1000) == 2000
    assert free(1, "3000", 1000) == 1024  # the machine has less
    assert free(10, "3000", 3000) == 1  # 0 would mean "unknown"
    assert free(10, "max", 1000) == 10 * 1024


def test_own_memory_is_measured(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_text("900 25 3 4 0 5 0\n")
    assert own_memory_bytes(statm) == 25 * os.sysconf("SC_PAGE_SIZE")
    assert own_memory_bytes(tmp_path / "nothing") > 1_000_000  # the peak


def test_the_profile_reports_the_memory_below_the_limit() -> None:
    def left(limit: int | None, own: int, free: int) -> int:
        return MemoryLimit(limit, own_bytes=lambda: own, free_bytes=lambda: free).left_bytes()

    assert left(None, 70, 500) == 500
    assert left(100, 70, 500) == 30
    assert left(100, 70, 20) == 20
    assert left(100, 70, 0) == 30  # a system without an estimate
    assert left(100, 130, 500) == 1  # 0 would mean "unknown"


def test_work_above_the_limit_ends_with_the_remedy() -> None:
    own = [90_000_000]
    limit = MemoryLimit(100_000_000, own_bytes=lambda: own[0])
    limit.check("training")
    own[0] = 130_000_000
    with pytest.raises(LimitExceeded, match=r"130 MB.*100 MB.*HFMDS_MAX_MEM"):
        limit.check("training")
    MemoryLimit(None, own_bytes=lambda: own[0]).check("training")
