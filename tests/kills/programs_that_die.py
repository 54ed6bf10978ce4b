"""Starts programs that kill themselves where a test says.

Run it with `python -m tests.kills.programs_that_die`.

Each start forks a process (`tests.support.forking`), which ends by a real SIGKILL.
`tests.support.supervision` sends the orders.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import edge_client.wiring
import hfmds.algorithm.methods.method_registry  # which programs load when they need it
import hfmds.storage.migrations  # noqa: F401
from coordinator.__main__ import main as coordinator
from coordinator.devices import results
from coordinator.records.runs import RunRecords
from edge_client.__main__ import main as edge_client_main
from hfmds.storage import database
from synthesis_store.__main__ import main as synthesis_store
from synthesis_store.snapshots import missing_content
from tests.kills.crash_points import (
    CommitWatch,
    CrashPoint,
    watch_commits,
    watch_holds,
    watch_steps,
)
from tests.support.forking import serve
from tests.support.scripted_devices import STEPS, ScriptedEngine


def device() -> None:
    edge_client.wiring.open_engine = lambda *_: ScriptedEngine()  # type: ignore
    edge_client_main()


PROGRAMS: dict[str, Callable[[], None]] = {
    "coordinator": coordinator,
    "edge_client": device,
    "synthesis_store": synthesis_store,
}


def become(order: dict[str, Any]) -> None:
    """Become the program, in a process that was just forked."""
    os.environ.update(order["environment"])
    sys.argv = [order["program"]]
    point = CrashPoint(**order["point"]) if order["point"] else None
    journal = Path(order["journal"])
    watch = CommitWatch(journal, point, order["done_before"])
    if not order["commit_together"]:  # then there is a point between any two transactions
        database._MOST_TOGETHER = results._MOST_AT_ONCE = 1
    missing_content.LOST_AFTER = timedelta(
        0
    )  # nobody waits ten minutes for what a test has deleted
    watch_commits(watch)
    watch_steps(watch, STEPS)
    watch_holds(journal.parent, [RunRecords.complete_round])
    PROGRAMS[order["program"]]()


if __name__ == "__main__":
    serve(become)
