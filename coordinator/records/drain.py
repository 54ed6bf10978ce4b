"""Drain: the coordinator hands out no new work and opens no new phase, until that is ended.

In the database, so that it is the same for every replica and after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, select

from coordinator.records.events import append_event
from coordinator.records.tables import DrainRow, RunRow
from hfmds.domain.runs import RunState
from hfmds.storage.database import reading, transaction
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind
from hfmds.wire.conversions.operations import Drain

_KEY = 1
_IS_ON = Prepared(select(DrainRow.on).where(DrainRow.drain_id == _KEY))
_LOOK_SECONDS = 1.0  # how late another replica's word may be heard


def is_drained(connection: Connection) -> bool:
    """Within a transaction."""
    return bool(_IS_ON.value(connection, {}))


class DrainRecords:
    """Whether the coordinator is drained, since when, and who asked for it. Thread-safe."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[bool, float] | None = None  # and when it was looked up

    def set(self, on: bool, by: str) -> Drain:
        """Drain, or end that; each run at work has it in its log."""
        now = self._clock()
        with transaction(self._engine) as session:
            connection = session.connection()
            if is_drained(connection) != on:
                session.merge(DrainRow(drain_id=_KEY, on=on, changed_at=now, changed_by=by))
                active = (RunState.RUNNING.name, RunState.PAUSED.name)
                runs = select(RunRow.run_id).where(RunRow.state.in_(active))
                kind = EventKind.DRAIN_ON if on else EventKind.DRAIN_OFF
                for run_id in sorted(session.scalars(runs)):
                    append_event(connection, run_id, kind, now, by=by)
        with self._lock:
            self._known = None
        return self.get()

    def get(self) -> Drain:
        """How it is."""
        with reading(self._engine) as session:
            row = session.get(DrainRow, _KEY)
            if row is None:
                return Drain(on=False)
            return Drain(row.on, datetime.fromtimestamp(row.changed_at, UTC), row.changed_by)

    def is_on(self) -> bool:
        """Whether it is drained, as of a second ago at most: every check-in asks."""
        now = self._clock()
        with self._lock:
            if self._known and abs(now - self._known[1]) < _LOOK_SECONDS:
                return self._known[0]
        on = self.get().on
        with self._lock:
            self._known = on, now
        return on
