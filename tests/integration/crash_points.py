"""Where a program can be killed in a test: just before and just after each of its commits.

Inside the program, `watch_commits` stands around SQLAlchemy's own commit; nothing in the programs
knows of it. A commit is named by the function that made it, e.g. `PhaseRecords.open`, which is
found on the stack. `transitions` finds the same names in the sources: what is to be passed through.
A device has no database; `watch_steps` stands around methods of its classes instead.
"""

from __future__ import annotations

import ast
import inspect
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

from sqlalchemy.engine.default import DefaultDialect

REPOSITORY = Path(__file__).resolve().parents[2]

Moment: TypeAlias = Literal["before", "after"]

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

    def around(self, what: str) -> Callable[[], None]:
        """To be called before `what` happens; what it returns, after."""
        with self._lock:
            self._counts[what] += 1
            occurrence = self._counts[what]
            self._write(what)
        self._die_at(CrashPoint(what, occurrence, "before"))
        return lambda: self._die_at(CrashPoint(what, occurrence, "after"))

    def _die_at(self, here: CrashPoint) -> None:
        if here == self._point:
            self._write(_KILLED)
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, line: str) -> None:
        with self._journal.open("a") as journal:
            journal.write(f"{line}\n")


_KILLED = "(killed)"


@dataclass(frozen=True, slots=True)
class Journal:
    """What a program did, in order, as another process reads it."""

    done: tuple[str, ...]
    killed: bool

    @classmethod
    def read(cls, path: Path) -> Journal:
        lines = path.read_text().splitlines() if path.exists() else []
        return cls(tuple(line for line in lines if line != _KILLED), _KILLED in lines)


def watch_commits(watch: Watch) -> None:
    """From now on, have every commit of this process watched that may have written."""
    commit: Callable[[DefaultDialect, Any], None] = DefaultDialect.do_commit

    def watched(dialect: DefaultDialect, connection: Any) -> None:
        name = _behind(sys._getframe(1))
        if name is None:
            commit(dialect, connection)
            return
        assert name, "a commit by nobody of ours"
        done = watch.around(name)
        commit(dialect, connection)
        done()

    DefaultDialect.do_commit = watched  # type: ignore[method-assign]


def _behind(frame: FrameType | None) -> str | None:
    """The function of ours that uses the database; empty: none. None: it only reads."""
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == _DATABASE and name == "reading":
            return None
        if module.partition(".")[0] in _PACKAGES and module != _DATABASE and not _is_aid(name):
            return frame.f_code.co_qualname
        frame = frame.f_back
    return ""


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


# --- in the sources -----------------------------------------------------------------------------


_OF_REPLICAS = {
    "LeaseRecords.take",
    "LeaseRecords.release",
    "Presence.write",
    "require_shared_content",
}
"""Made only where several coordinators share a database: see `test_replicas`."""


_OF_ENROLMENT = {"Enrolment.enrol", "Enrolment.renew"}
"""Made only where there is TLS; that a lost answer costs nothing: `test_enrolment`."""


OF_THE_STORE_ALONE = {
    "Contents.give_up",
    "Losses.give_up",
    "PoolRecords.abandon_if_empty",
    "PoolRecords.count_leaking_batch",
    "PoolRecords.halt",
    "PoolRecords.note_refusals",
    "Retention.collect_snapshot",
    "Retention.forget_released",
    "Withdrawals.settle",
    "Withdrawals.withdraw",
}
"""No run passes through these by itself: see `test_killed_store`."""


def transitions(program: str) -> list[str]:
    """The functions of a program that make a transaction that may write, and that runs make."""
    files = sorted((REPOSITORY / program).rglob("*.py"))
    made = [name for file in files for name in _transitions(ast.parse(file.read_text()))]
    return [name for name in made if name not in _OF_REPLICAS | _OF_ENROLMENT | OF_THE_STORE_ALONE]


def _transitions(module: ast.Module) -> Iterator[str]:
    functions = dict(_functions(module, ""))
    ways = {"transaction", "changing"}
    ways |= {f.name for f in functions.values() if _is_aid(f.name) and _calls(f, ways)}
    for qualified, function in functions.items():
        if not _is_aid(function.name) and _calls(function, ways):
            yield qualified


def _functions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
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
