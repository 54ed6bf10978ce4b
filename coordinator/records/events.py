"""The event log of each run (`hfmds.storage.event_log`).

It outlives its run: nothing here refers to the run's row.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, bindparam, func, select
from sqlalchemy.orm import Session

from coordinator.records.tables import EventRow, FleetRow, RunRow
from hfmds.errors import NotFound
from hfmds.event_chain import Event
from hfmds.storage.database import reading
from hfmds.storage.event_log import add_event, read_events
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind

COORDINATOR = "coordinator"
"""Who asked, when nobody did: the coordinator acted by itself."""

_NONCE = Prepared(select(RunRow.nonce).where(RunRow.run_id == bindparam("run_id")))


def nonce_of(connection: Connection, run_id: str) -> str:
    """What tells a run that is there from others that had its id."""
    nonce: str = _NONCE.first(connection, {"run_id": run_id}).nonce
    return nonce


def append_event(
    connection: Connection, run_id: str, kind: EventKind, now: float, **details: object
) -> None:
    """Within the transaction that makes it true: write an event to a run's log."""
    append_to_log(connection, run_id, nonce_of(connection, run_id), kind, now, details)


def append_to_log(
    connection: Connection,
    run_id: str,
    nonce: str,
    kind: EventKind,
    now: float,
    details: dict[str, object],
) -> None:
    """As `append_event`, for whoever knows the run's nonce."""
    log_id = f"{run_id}.{nonce}"
    add_event(connection, EventRow, log_id, now, kind.value, details, run_id=run_id)


def append_fleet_event(
    connection: Connection, log_id: str, kind: EventKind, now: float, **details: object
) -> None:
    """Within the transaction that makes it true: write an event to the fleet's log."""
    add_event(connection, EventRow, log_id, now, kind.value, details, run_id="")


def require_log(session: Session, run_id: str) -> None:
    """Refuse the id of a run that never was."""
    if session.scalar(select(EventRow.run_id).where(EventRow.run_id == run_id).limit(1)) is None:
        raise NotFound(f"there is no run {run_id!r}; `hfmds run list` shows those there are")


class EventRecords:
    """What the coordinator remembers of what happened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def log_of(self, run: str) -> str:
        """The unique id of the log that is meant: by that, or by the run's id; empty: the fleet's.

        Of runs that had the same id one after the other, the last.
        """
        by_uid = select(EventRow.log_id).where(EventRow.log_id == run).limit(1)
        by_id = (
            select(EventRow.log_id)
            .where(EventRow.run_id == run)
            .order_by(EventRow.at_microseconds.desc())
            .limit(1)
        )
        of_fleet = select(FleetRow.log_id)
        with reading(self._engine) as session:
            asked = (by_uid, by_id) if run else (of_fleet,)
            found = next(filter(None, map(session.scalar, asked)), None)
        if found is None:
            raise NotFound(f"there is no log of a run {run!r}; `hfmds run list` shows the runs")
        return found

    def events(self, run_uid: str, after: int, limit: int) -> list[Event]:
        """At most so many events of a log after a number, in order."""
        with reading(self._engine) as session:
            return read_events(session, EventRow, run_uid, after, limit)

    def last_sequence(self, run_uid: str) -> int:
        """The number of the newest event of a log; 0: it has none."""
        newest = select(func.max(EventRow.sequence)).where(EventRow.log_id == run_uid)
        with reading(self._engine) as session:
            return session.scalar(newest) or 0
