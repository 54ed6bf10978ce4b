"""Drain: the coordinator hands out no new work and opens no new phase until an operator ends it.

The database holds it, so it is the same for every replica and after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, select

from coordinator.records.events import append_event
from coordinator.records.tables import DrainRow, RunRow
from hfmds.domain.administration.events import EventKind
from hfmds.domain.administration.operations import Drain
from hfmds.domain.runs import RunState
from hfmds.storage.database import read_session, write_session

_DRAIN_ID = 1
_CACHE_SECONDS = 1.0


def is_drained(connection: Connection) -> bool:
    """Return whether the coordinator is drained, in the caller's transaction."""
    return bool(connection.scalar(select(DrainRow.on).where(DrainRow.drain_id == _DRAIN_ID)))


class DrainRecords:
    """Whether the coordinator is drained, since when, and which operator asked. Thread-safe."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: tuple[bool, float] | None = None  # with the time of the look

    def set(self, on: bool, by: str) -> Drain:
        """Begin or end a drain, and write it to the log of each run that has not ended."""
        now = self._clock()
        with write_session(self._engine) as session:
            connection = session.connection()
            if is_drained(connection) != on:
                session.merge(DrainRow(drain_id=_DRAIN_ID, on=on, changed_at=now, changed_by=by))
                active = (RunState.RUNNING.name, RunState.PAUSED.name)
                runs = select(RunRow.run_id).where(RunRow.state.in_(active))
                kind = EventKind.DRAIN_ON if on else EventKind.DRAIN_OFF
                for run_id in sorted(session.scalars(runs)):
                    append_event(connection, run_id, kind, now, by=by)
        with self._lock:
            self._cached = None
        return self.get()

    def get(self) -> Drain:
        """Return the drain as the database has it."""
        with read_session(self._engine) as session:
            row = session.get(DrainRow, _DRAIN_ID)
            if row is None:
                return Drain(on=False)
            return Drain(row.on, datetime.fromtimestamp(row.changed_at, UTC), row.changed_by)

    def is_on(self) -> bool:
        """Return whether the coordinator is drained; the answer is at most a second old.

        Every check-in asks, so this does not read the database each time.
        """
        now = self._clock()
        with self._lock:
            if self._cached and abs(now - self._cached[1]) < _CACHE_SECONDS:
                return self._cached[0]
        on = self.get().on
        with self._lock:
            self._cached = on, now
        return on
