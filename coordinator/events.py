"""The event log of each run in the database: appended to, read, and never changed.

An event is written in the transaction of what it tells of: both are there, or neither. A
transaction that may write has the database for itself (`hfmds.storage.database`), also with two
replicas, so a log has one end. It outlives its run: nothing here refers to the run's row.
"""

from __future__ import annotations

from sqlalchemy import Engine, bindparam, select
from sqlalchemy.orm import Session

from coordinator.tables import EventRow, RunRow
from hfmds.errors import NotFound
from hfmds.storage.database import reading
from hfmds.wire.events import Event, EventKind, canonical, make_event, origin

COORDINATOR = "coordinator"
"""Who asked, when nobody did: the coordinator acted by itself."""

_ENDS = "hfmds_ends_of_logs"  # of a session: where each log ends that it has appended to
_NEWEST = (
    select(EventRow.sequence, EventRow.hash)
    .where(EventRow.run_uid == bindparam("run_uid"))
    .order_by(EventRow.sequence.desc())
    .limit(1)
)


def append_event(
    session: Session, run_id: str, kind: EventKind, now: float, **details: object
) -> None:
    """Within the transaction that makes it true: write an event to a run's log."""
    run = session.get_one(RunRow, run_id)
    run_uid = f"{run_id}.{run.nonce}"
    ends: dict[str, tuple[int, str]] = session.info.setdefault(_ENDS, {})
    sequence, previous_hash = ends.get(run_uid) or _end(session, run_uid)
    event = make_event(
        run_uid, sequence + 1, round(now * 1e6), kind.value, canonical(details), previous_hash
    )
    session.add(
        EventRow(
            run_uid=run_uid,
            sequence=event.sequence,
            run_id=run_id,
            at_microseconds=event.at_microseconds,
            kind=event.kind,
            details=event.details,
            previous_hash=event.previous_hash,
            hash=event.hash,
        )
    )
    ends[run_uid] = event.sequence, event.hash


def require_log(session: Session, run_id: str) -> None:
    """Refuse the id of a run that never was."""
    if session.scalar(select(EventRow.run_id).where(EventRow.run_id == run_id).limit(1)) is None:
        raise NotFound(f"there is no run {run_id!r}; `hfmds run list` shows those there are")


class EventRecords:
    """What the coordinator remembers of what happened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def log_of(self, run: str) -> str:
        """The unique id of the run that is meant: by that, or by the run's id.

        Of runs that had the same id one after the other, the last.
        """
        by_uid = select(EventRow.run_uid).where(EventRow.run_uid == run).limit(1)
        by_id = (
            select(EventRow.run_uid)
            .where(EventRow.run_id == run)
            .order_by(EventRow.at_microseconds.desc())
            .limit(1)
        )
        with reading(self._engine) as session:
            found = session.scalar(by_uid) or session.scalar(by_id)
        if found is None:
            raise NotFound(f"there is no log of a run {run!r}; `hfmds run list` shows the runs")
        return found

    def events(self, run_uid: str, after: int, limit: int) -> list[Event]:
        """At most so many events of a log after a number, in order."""
        following = (
            select(EventRow)
            .where(EventRow.run_uid == run_uid, EventRow.sequence > after)
            .order_by(EventRow.sequence)
            .limit(limit)
        )
        with reading(self._engine) as session:
            return [_event(row) for row in session.scalars(following)]


def _end(session: Session, run_uid: str) -> tuple[int, str]:
    found = session.execute(_NEWEST, {"run_uid": run_uid}).first()
    return (found[0], found[1]) if found else (0, origin(run_uid))


def _event(row: EventRow) -> Event:
    return Event(
        row.run_uid,
        row.sequence,
        row.at_microseconds,
        row.kind,
        row.details,
        row.previous_hash,
        row.hash,
    )
