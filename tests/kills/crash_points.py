"""Where a program can be killed in a test: just before and just after each of its commits.

Inside the program, `watch_commits` stands around SQLAlchemy's own commit; nothing in the programs
knows of it. A commit is named by the function that made it, e.g. `PhaseRecords.open`, which is
found on the stack. `transitions` finds the same names in the sources: what is to be passed through.
With each commit stands what it did to the states of runs, rounds and tasks, as the database saw it.
A device has no database; `watch_steps` stands around methods of its classes instead.
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
    """A moment of a program's life: around the n-th time (1 is the first) something happens."""

    what: str
    occurrence: int
    moment: Moment


def around(what: str, *occurrences: int) -> list[CrashPoint]:
    """Just before and just after each: the second is once the program was back and did it."""
    moments: tuple[Moment, ...] = ("before", "after")
    return [CrashPoint(what, n, moment) for n in occurrences for moment in moments]


class Watch:
    """Keeps a journal of what the program does, and kills the program at the point, if any."""

    def __init__(self, journal: Path, point: CrashPoint | None, done_before: int = 0) -> None:
        """`done_before` is how often what the point is at was done in lives before this one."""
        self._journal = journal
        self._point = point
        self._counts: Counter[str] = Counter({point.what: done_before} if point else {})
        self._lock = threading.Lock()

    def around(self, what: str, steps: Iterable[str] = ()) -> Callable[[], None]:
        """To be called before `what` happens, and takes these steps; what it returns, after."""
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
    """What a program did, in order, as another process reads it."""

    done: tuple[str, ...]
    taken: tuple[frozenset[str], ...]  # the steps of the state machines that each of these took
    killed: bool
    killed_taking: frozenset[str]  # the steps around which it was killed

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
        """What was done, the how many-th time, and the steps it took."""
        times = Counter[str]()
        for what, taken in zip(self.done, self.taken, strict=True):
            times[what] += 1
            yield what, times[what], taken


_STATES_OF = {"runs": "run", "rounds": "round", "tasks": "task"}
"""The coordinator's tables of what has states, and what they are called."""

_TAKEN = "steps that the transaction of this connection has taken"
_NOTES = "the database tells of steps"


def step(kind: str, before: str, after: str) -> str:
    """A step from one state to the next, as journals have it."""
    return f"{kind} {before} -> {after}"


def _note_steps(driver: Any, record: Any, _: Any) -> None:
    """Have SQLite tell of every step that it is asked to write, from now on.

    Not the function that allows them: that is also asked of tasks that are not there, and it would
    not see whoever goes past it. A transaction begins with the connection, and ends with it.
    """
    taken: list[str] = record.info.setdefault(_TAKEN, [])
    taken.clear()
    if _NOTES in record.info or not isinstance(driver, sqlite3.Connection):
        return
    tables = {name for (name,) in driver.execute("SELECT name FROM sqlite_master")}
    if not tables >= _STATES_OF.keys():  # of the store, or not made yet
        return
    driver.create_function("note_step", 3, lambda *of: taken.append(step(*of)))
    for table, kind in _STATES_OF.items():  # of this connection, and not in the file
        driver.execute(
            f"CREATE TEMP TRIGGER steps_of_{table} AFTER UPDATE OF state ON main.{table} "
            f"WHEN OLD.state <> NEW.state BEGIN SELECT note_step('{kind}', OLD.state, NEW.state); "
            "END"
        )
    record.info[_NOTES] = True


def watch_commits(watch: Watch) -> None:
    """From now on, have every commit of this process watched that may have written."""
    event.listen(Pool, "checkout", _note_steps)
    commit: Callable[[DefaultDialect, Any], None] = DefaultDialect.do_commit

    def watched(dialect: DefaultDialect, connection: Any) -> None:
        name = _behind(sys._getframe(1))
        if name is None:
            commit(dialect, connection)
            return
        assert name, "a commit by nobody of ours"
        done = watch.around(name, connection.info.get(_TAKEN, ()))
        commit(dialect, connection)
        done()

    DefaultDialect.do_commit = watched  # type: ignore[method-assign]


def _behind(frame: FrameType | None) -> str | None:
    """The function of ours that uses the database; empty: none. None: it only reads.

    An aid that is at work for nobody, such as a thread's function, is who commits.
    """
    aid = ""
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == _DATABASE and name == "reading":
            return None
        if module.partition(".")[0] in _PACKAGES and module != _DATABASE:
            if not _is_aid(name):
                return frame.f_code.co_qualname
            aid = aid or frame.f_code.co_qualname
        frame = frame.f_back
    return aid


def _is_aid(name: str) -> bool:
    """Whether a function serves others of its module, which are who they commit for."""
    return name.startswith("_") and not name.startswith("__")


def watch_steps(watch: Watch, steps: Iterable[Callable[..., Any]]) -> None:
    """From now on, have every call of these methods watched; some may be asynchronous."""
    for step in steps:
        cls = getattr(sys.modules[step.__module__], step.__qualname__.partition(".")[0])
        setattr(cls, step.__name__, _watched(watch, step))


def _watched(watch: Watch, step: Callable[..., Any]) -> Callable[..., Any]:
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
    """As long as there is this file, programs whose journals are in the folder wait before `what`.

    So a story can do something at a moment that would be over too soon.
    """
    return folder / f"{what}.held"


def watch_holds(folder: Path, steps: Iterable[Callable[..., Any]]) -> None:
    """From now on, have every call of these methods wait while it is held."""
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
"""Made only where several coordinators share a database: see `test_replicas`."""


_OF_ENROLMENT = {"DeviceEnrolment.enrol", "DeviceEnrolment.renew"}
"""Made only where there is TLS; that a lost answer costs nothing: `test_enrolment`."""


_OF_PLANS = {"Plans._keep"}
"""Made in a thread of its own, and only for devices that compute by plans: none of the stories'.

The bytes are there before the row, and without the row, or without the bytes, a plan is made again:
`test_plans`.
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
"""No run passes through these by itself: see `test_killed_store`."""


NOT_OF_RUNS = _OF_REPLICAS | _OF_ENROLMENT | _OF_PLANS | OF_THE_STORE_ALONE


def transitions(program: str) -> list[str]:
    """The functions of a program that make a transaction that may write, and that runs make."""
    return [name for name in all_transitions(program) if name not in NOT_OF_RUNS]


def all_transitions(program: str) -> list[str]:
    """The same, with those that no run makes."""
    files = sorted((REPOSITORY / program).rglob("*.py"))
    return [name for file in files for name in transitions_in(ast.parse(file.read_text()))]


def transitions_in(module: ast.Module) -> Iterator[str]:
    """The same of one module, by the names that `_behind` has for them."""
    functions = dict(_functions(module, ""))
    found = {
        committing
        for qualified, function in functions.items()
        if _calls(function, {"transaction", "changing"})
        for committing in _served(functions, qualified) or {qualified}
    }
    return (qualified for qualified in functions if qualified in found)


def _served(functions: Mapping[str, _Function], qualified: str) -> set[str]:
    """Those who are no aids: the function itself, or whom it serves, through however many aids."""
    served, left, seen = set[str](), [qualified], set[str]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        if _is_aid(functions[one].name):
            left += (c for c, f in functions.items() if _calls(f, {functions[one].name}))
        else:
            served.add(one)
    return served


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child


def _calls(function: ast.AST, names: set[str]) -> bool:
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(
        (isinstance(one, ast.Name) and one.id in names)
        or (isinstance(one, ast.Attribute) and one.attr in names)
        for one in called
    )
