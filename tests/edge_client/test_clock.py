"""A device with a wrong clock works as any other: it waits for nothing by the wall clock."""

from __future__ import annotations

import ast
from pathlib import Path

EDGE_CLIENT = Path(__file__).resolve().parents[2] / "edge_client"

# What is forgotten first, when a day of traffic is over, and how long the device was off: there is
# no other clock for these.
MAY_LOOK = {"content_cache.py", "own_certificate.py", "device_folder.py", "traffic.py"}
WALL_CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}


def looks(path: Path) -> set[str]:
    """The wall clocks that a module looks at: time.time, datetime.now and the like."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in WALL_CLOCKS
        and isinstance(node.value, ast.Name)
        and node.value.id in ("time", "datetime", "date")
    }


def test_the_wall_clock_is_only_a_fallback() -> None:
    found = {path.name for path in EDGE_CLIENT.rglob("*.py") if looks(path)}
    assert found == MAY_LOOK
