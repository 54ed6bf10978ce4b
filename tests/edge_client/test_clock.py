"""A device with a wrong clock works, because no wait depends on the wall clock."""

from __future__ import annotations

import ast
from pathlib import Path

EDGE_CLIENT = Path(__file__).resolve().parents[2] / "edge_client"

# Only the wall clock can order cache entries, end a day of traffic and measure the time that
# the device was off.
MAY_LOOK = {"content_cache.py", "own_certificate.py", "device_folder.py", "traffic.py"}
WALL_CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}


def looks(path: Path) -> set[str]:
    """Return the calls to wall clocks in a module, such as time.time and datetime.now."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in WALL_CLOCKS
        and isinstance(node.value, ast.Name)
        and node.value.id in ("time", "datetime", "date")
    }


def test_the_wall_clock_is_only_a_fallback() -> None:
    modules = {path.name for path in EDGE_CLIENT.rglob("*.py") if looks(path)}
    assert modules == MAY_LOOK
