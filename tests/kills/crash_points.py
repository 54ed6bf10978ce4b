"""The points at which a test can kill a program: just before and just after each commit.

`watch_commits` wraps SQLAlchemy's commit inside the program. The product has no code for it. The
name of a commit is the function that made it, such as `PhaseRecords.open`, found on the stack.
`transitions` finds the same names in the sources. A journal lists each commit with the steps that
it took in the state machines of runs, rounds and tasks, as the database saw them. A device has no
database, so `watch_steps` wraps methods of its classes instead.
"""

from __future__ import annotations

import ast
import inspect
import os
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

from sqlalchemy import event
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.pool import Pool

REPOSITORY = Path(__file__).resolve().parents[2]

Moment: TypeAlias = Literal["before", "after"]
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_LOOK_SECONDS = 0.01
_PACKAGES = ("coordinator", "edge_client", "hfmds", "synthesis_store")
_DATABASE = "hfmds.storage.database"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The moment before or after the n-th commit (1 is the first) of a function."""

    what: str
    occurrence: int
    moment: Moment


def around(what: str, *occurrences: int) -> list[CrashPoint]:
    """Return the moments before and after each occurrence of a commit."""
    moments: tuple[Moment, ...] = ("before", "after")
    return [CrashPoint(what, n, moment) for n in occurrences for moment in moments]


class CommitWatch:
    """Writes a journal of the commits of this program, and kills the program at the point."""

    def __init__(self, journal: Path, point: CrashPoint | None, done_before: int = 0) -> None:
        """`done_before` counts the commits of the point's function in earlier processes."""
        self._journal = journal
        self._point = point
        self._counts: Counter[str] = Counter({point.what: done_before} if point else {})
        self._lock = threading.Lock()

    def around(self, what: str, steps: Iterable[str] = ()) -> Callable[[], None]:
        """Call this before a commit with these steps, and call what it returns after it."""
        taken = sorted(set(steps))
        with self._lock:
            self._counts[what] += 1
            occurrence = self._counts[what]
            self._write(what, taken)
        self._die_at(CrashPoint(what, occurrence, "before"), taken)
        return lambda: self._die_at(CrashPoint(what, occurrence, "after"), taken)

    def _die_at(self, here: CrashPoint, taken: list[str]) -> None:
        if here == self._point:
            self._write(_KILLED, taken)
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, what: str, taken: list[str]) -> None:
        with self._journal.open("a") as journal:
            journal.write("\t".join((what, *taken)) + "\n")


_KILLED = "(killed)"


@dataclass(frozen=True, slots=True)
class Journal:
    """The commits of a program in order, as another process reads them."""

    done: tuple[str, ...]
    taken: tuple[frozenset[str], ...]  # the steps of each commit in the state machines
    killed: bool
    killed_taking: frozenset[str]  # the steps of the killed commit

    @classmethod
    def read(cls, path: Path) -> Journal:
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [(what, frozenset(taken)) for what, *taken in (li.split("\t") for li in lines)]
        done = [entry for entry in entries if entry[0] != _KILLED]
        killed = [taken for what, taken in entries if what == _KILLED]
        return cls(
            tuple(what for what, _ in done),
            tuple(taken for _, taken in done),
            bool(killed),
            killed[0] if killed else frozenset(),
        )

    def steps(self) -> Iterator[tuple[str, int, frozenset[str]]]:
        """Yield each commit with its occurrence and its steps."""
        times = Counter[str]()
        for what, taken in zip(self.done, self.taken, strict=True):
            times[what] += 1
            yield what, times[what], taken


_STATES_OF = {"runs": "run", "rounds": "round", "tasks": "task"}
"""The coordinator's tables with states, and the names of their rows."""

_TAKEN = "steps that the transaction of this connection has taken"
_NOTES = "the database tells of steps"


def step(kind: str, before: str, after: str) -> str:
    """Return the text of a step from one state to the next."""
    return f"{kind} {before} -> {after}"


def _note_steps(driver: Any, record: Any, _: Any) -> None:
    """Make SQLite note every change of a state from now on.

    The database sees every change, also one that bypasses `require_transition`. A transaction
    begins and ends with its connection.
    """
    taken: list[str] = record.info.setdefault(_TAKEN, [])
    taken.clear()
    if _NOTES in record.info or not isinstance(driver, sqlite3.Connection):
        return
    tables = {name for (name,) in driver.execute("SELECT name FROM sqlite_master")}
    if not tables >= _STATES_OF.keys():  # a database of the store, or an empty one
        return
    driver.create_function("note_step", 3, lambda *of: taken.append(step(*of)))
    for table, kind in _STATES_OF.items():  # a trigger of this connection, not of the file
        driver.execute(
            f"CREATE TEMP TRIGGER steps_of_{table} AFTER UPDATE OF state ON main.{table} "
            f"WHEN OLD.state <> NEW.state BEGIN SELECT note_step('{kind}', OLD.state, NEW.state); "
            "END"
        )
    record.info[_NOTES] = True


def watch_commits(watch: CommitWatch) -> None:
    """CommitWatch every commit of this process that may have written."""
    event.listen(Pool, "checkout", _note_steps)
    commit: Callable[[DefaultDialect, Any], None] = DefaultDialect.do_commit

    def watched(dialect: DefaultDialect, connection: Any) -> None:
        name = _behind(sys._getframe(1))
        if name is None:
            commit(dialect, connection)
            return
        assert name, "no function of the product made this commit"
        done = watch.around(name, connection.info.get(_TAKEN, ()))
        commit(dialect, connection)
        done()

    DefaultDialect.do_commit = watched  # type: ignore[method-assign]


def _behind(frame: FrameType | None) -> str | None:
    """Return the product's function that commits; "" if there is none; None if it only reads.

    A private function counts only if no public one called it, such as the main function of a
    thread.
    """
    private = ""
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == _DATABASE and name == "read_session":
            return None
        if module.partition(".")[0] in _PACKAGES and module != _DATABASE:
            if not _is_private(name):
                return frame.f_code.co_qualname
            private = private or frame.f_code.co_qualname
        frame = frame.f_back
    return private


def _is_private(name: str) -> bool:
    """Return whether a function only serves others of its module."""
    return name.startswith("_") and not name.startswith("__")


def watch_steps(watch: CommitWatch, steps: Iterable[Callable[..., Any]]) -> None:
    """CommitWatch every call of these methods, some of which may be asynchronous."""
    for step in steps:
        cls = getattr(sys.modules[step.__module__], step.__qualname__.partition(".")[0])
        setattr(cls, step.__name__, _watched(watch, step))


def _watched(watch: CommitWatch, step: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        done = watch.around(step.__qualname__)
        result = step(*args, **kwargs)
        done()
        return result

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        done = watch.around(step.__qualname__)
        result = await step(*args, **kwargs)
        done()
        return result

    return call_async if inspect.iscoroutinefunction(step) else call


def held(folder: Path, what: str) -> Path:
    """Return a file. While it exists, programs of this folder wait before the method.

    So a scenario can act at a moment that would otherwise be too short.
    """
    return folder / f"{what}.held"


def watch_holds(folder: Path, steps: Iterable[Callable[..., Any]]) -> None:
    """Make every call of these methods wait while its file exists."""
    for method in steps:
        cls = getattr(sys.modules[method.__module__], method.__qualname__.partition(".")[0])
        setattr(cls, method.__name__, _holding(held(folder, method.__qualname__), method))


def _holding(file: Path, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        while file.exists():
            time.sleep(_LOOK_SECONDS)
        return method(*args, **kwargs)

    return call


# --- in the sources -----------------------------------------------------------------------------


_OF_REPLICAS = {
    "LeaseRecords.take",
    "LeaseRecords.release",
    "Presence.write",
    "require_shared_content",
}
"""Only replicas that share a database make these: see `test_replicas`."""


_OF_ENROLMENT = {"DeviceEnrolment.enrol", "DeviceEnrolment.renew"}
"""Only enrolment over TLS makes these: `test_enrolment` loses the answers."""


_OF_PLANS = {"Plans._keep"}
"""Only devices that compute by plans need these, and no scenario has one.

The coordinator makes a plan again if its row or its bytes are missing: see `test_plans`.
"""


OF_THE_STORE_ALONE = {
    "Orphans.discard",
    "Orphans.sweep",
    "PoolRecords.abandon_if_empty",
    "PoolRecords.count_leaking_batch",
    "PoolRecords.halt",
    "PoolRecords.remove_lost_batches",
    "PoolRecords.write_refusals",
    "SnapshotRetention.collect_snapshot",
    "SnapshotRetention.forget_released_runs",
    "Withdrawals.complete",
    "Withdrawals.withdraw",
}
"""Only calls of operators or background work make these: see `tests/kills/test_store.py`."""


NOT_OF_RUNS = _OF_REPLICAS | _OF_ENROLMENT | _OF_PLANS | OF_THE_STORE_ALONE


def transitions(program: str) -> list[str]:
    """Return the functions of a program that commit changes during runs."""
    return [name for name in all_transitions(program) if name not in NOT_OF_RUNS]


def all_transitions(program: str) -> list[str]:
    """Return all functions of a program that commit changes."""
    files = sorted((REPOSITORY / program).rglob("*.py"))
    return [name for file in files for name in transitions_in(ast.parse(file.read_text()))]


def transitions_in(module: ast.Module) -> Iterator[str]:
    """Return the functions of one module that commit changes, named as `_behind` names them."""
    functions = dict(_functions(module, ""))
    found = {
        committing
        for qualified, function in functions.items()
        if _calls(function, {"write_session", "write_connection"})
        for committing in _served(functions, qualified) or {qualified}
    }
    return (qualified for qualified in functions if qualified in found)


def _served(functions: Mapping[str, _Function], qualified: str) -> set[str]:
    """Return the public functions that reach a function through private ones, or itself."""
    served, to_visit, seen = set[str](), [qualified], set[str]()
    while to_visit:
        name = to_visit.pop()
        if name in seen:
            continue
        seen.add(name)
        if _is_private(functions[name].name):
            to_visit += (c for c, f in functions.items() if _calls(f, {functions[name].name}))
        else:
            served.add(name)
    return served


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child


def _calls(function: ast.AST, names: set[str]) -> bool:
    callees = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(
        (isinstance(callee, ast.Name) and callee.id in names)
        or (isinstance(callee, ast.Attribute) and callee.attr in names)
        for callee in callees
    )
