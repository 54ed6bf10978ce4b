"""What a device says of its free memory."""

from __future__ import annotations

from pathlib import Path

from edge_client.free_memory import free_memory_bytes


def test_the_systems_own_estimate_is_told(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:  4321 kB\n")
    assert free_memory_bytes(meminfo) == 4321 * 1024


def test_a_system_without_it_still_tells_a_number(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path / "nothing") >= 0
    odd = tmp_path / "odd"
    odd.write_text("MemAvailable: unknown\n")
    assert free_memory_bytes(odd) >= 0
