"""The event log of each run, and of the fleet (`hfmds.storage.event_log`).

A log outlives its run: no foreign key points from an event to the run.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.orm import Session

from coordinator.records.tables import EventRow, FleetRow, RunRow
from hfmds.domain.administration.events import EventKind
from hfmds.errors import NotFound
from hfmds.event_chain import Event
from hfmds.storage.database import read_session
from hfmds.storage.event_log import add_event, read_events

COORDINATOR = "coordinator"
"""The actor of an event that no operator asked for."""


def run_uid_of(connection: Connection, run_id: str) -> str:
    """Return the id of a run that no other run ever has, even one with the same `run_id`."""
    nonce = connection.scalars(select(RunRow.nonce).where(RunRow.run_id == run_id)).one()
    return f"{run_id}.{nonce}"


def append_event(
    connection: Connection, run_id: str, kind: EventKind, now: float, **details: object
) -> None:
    """Write an event to a run's log, in the transaction of the change that it describes."""
    append_to_log(connection, run_uid_of(connection, run_id), run_id, kind, now, details)


def append_to_log(
    connection: Connection,
    run_uid: str,
    run_id: str,
    kind: EventKind,
    now: float,
    details: dict[str, object],
) -> None:
    """Do the same as `append_event`, for a caller that knows the run's uid."""
    add_event(connection, EventRow, run_uid, now, kind.value, details, run_id=run_id)


def append_fleet_event(
    connection: Connection, log_id: str, kind: EventKind, now: float, **details: object
) -> None:
    """Write an event to the fleet's log, in the transaction of the change that it describes."""
    add_event(connection, EventRow, log_id, now, kind.value, details, run_id="")


def require_log(session: Session, run_id: str) -> None:
    """Raise NotFound if no run ever had this id."""
    if session.scalar(select(EventRow.run_id).where(EventRow.run_id == run_id).limit(1)) is None:
        raise NotFound(f"there is no run {run_id!r}; `hfmds run list` shows the runs")


class EventRecords:
    """Reads the event logs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def log_of(self, run: str) -> str:
        """Return the id of a log: `run` is a run's uid or its id; empty means the fleet.

        If several runs had the same id one after the other, this is the log of the last one.
        """
        by_uid = select(EventRow.log_id).where(EventRow.log_id == run).limit(1)
        by_id = (
            select(EventRow.log_id)
            .where(EventRow.run_id == run)
            .order_by(EventRow.at_microseconds.desc())
            .limit(1)
        )
        with read_session(self._engine) as session:
            if run:
                log_id = session.scalar(by_uid) or session.scalar(by_id)
            else:
                log_id = session.scalar(select(FleetRow.log_id))
        if log_id is None:
            raise NotFound(f"there is no log of a run {run!r}; `hfmds run list` shows the runs")
        return log_id

    def events(self, run_uid: str, after: int, limit: int) -> list[Event]:
        """Return at most `limit` events of a log, in order, starting after a sequence number."""
        with read_session(self._engine) as session:
            return read_events(session, EventRow, run_uid, after, limit)

    def last_sequence(self, run_uid: str) -> int:
        """Return the number of the newest event of a log; 0 if it has none."""
        newest = select(func.max(EventRow.sequence)).where(EventRow.log_id == run_uid)
        with read_session(self._engine) as session:
            return session.scalar(newest) or 0
