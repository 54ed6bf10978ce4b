"""Starts programs that kill themselves where a test says: `python -m tests.integration.crashing`.

Imports the programs once and forks for each start, because importing takes longer than all else
that such a test does. Every start is a process of its own, and its end a real SIGKILL.

Takes one order a line, as JSON: {"start": {...}} is answered with the process's id, {"kill": id}
with a line when it is gone, {"alive": id} with 1 or 0. Its processes end with it, when its input
does. The other end is `tests.integration.supervision`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import edge_client.__main__
import hfmds.algorithm.methods.registry  # which programs load when they need it
import hfmds.storage.migrations  # noqa: F401
from coordinator import results
from coordinator.__main__ import main as coordinator
from hfmds.service.collector import spare_what_stays
from hfmds.storage import database
from synthesis_store.__main__ import main as synthesis_store
from tests.integration.crash_points import CrashPoint, Watch, watch_commits, watch_steps
from tests.integration.scripted_devices import STEPS, ScriptedEngine


def device() -> None:
    edge_client.__main__.open_engine = lambda *_: ScriptedEngine()  # type: ignore
    edge_client.__main__.main()


PROGRAMS: dict[str, Callable[[], None]] = {
    "coordinator": coordinator,
    "edge_client": device,
    "synthesis_store": synthesis_store,
}


def main() -> None:
    spare_what_stays()  # or every child would look through all that torch brings, and copy it
    children: set[int] = set()  # those not waited for: their ids cannot be another's
    for line in sys.stdin:
        match json.loads(line):
            case {"start": order}:
                child = os.fork()
                if child == 0:
                    _become(order)
                children.add(child)
                answer = child
            case {"kill": child}:
                _kill(children & {child})
                children.discard(child)
                answer = child
            case {"alive": child}:
                if child in children and os.waitpid(child, os.WNOHANG)[0]:
                    children.discard(child)
                answer = int(child in children)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    _kill(children)


def _kill(children: set[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _become(order: dict[str, Any]) -> None:
    """Be the program, in a process just forked."""
    code: object = 1
    try:
        _redirect(Path(order["log"]))
        os.environ.update(order["environment"])
        sys.argv = [order["program"]]
        point = CrashPoint(**order["point"]) if order["point"] else None
        watch = Watch(Path(order["journal"]), point, order["done_before"])
        if not order["commit_together"]:  # then there is a point between any two transactions
            database._MOST_TOGETHER = results._MOST_AT_ONCE = 1
        watch_commits(watch)
        watch_steps(watch, STEPS)
        PROGRAMS[order["program"]]()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 (nobody is above: into the log)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


if __name__ == "__main__":
    main()
