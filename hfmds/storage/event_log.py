"""An event log in a database: appended to, read, and never changed.

An event is written in the transaction of what it tells of: both are there, or neither. A
transaction that may write has the database for itself (`hfmds.storage.database`), also with several
replicas, so a log has one end. Each program has a table of its own with these columns.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

from sqlalchemy import BigInteger, Select, String, bindparam, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from hfmds.event_chain import Event, canonical, make_event, origin

_ENDS = "hfmds_ends_of_logs"  # of a session: where each log ends that it has appended to


class EventColumns:
    """The columns of an event, named as its fields are."""

    log_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)  # from 1, without gaps
    at_microseconds: Mapped[int] = mapped_column(BigInteger)  # whole, since it is hashed
    kind: Mapped[str] = mapped_column(String(32))
    details: Mapped[str]  # a JSON object in canonical form
    previous_hash: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


def next_event(
    session: Session,
    table: type[EventColumns],
    log_id: str,
    at_seconds: float,
    kind: str,
    details: dict[str, object],
) -> Event:
    """The event that continues a log; the caller adds its row, in the same transaction."""
    ends: dict[str, tuple[int, str]] = session.info.setdefault(_ENDS, {})
    sequence, previous_hash = ends.get(log_id) or _end(session, table, log_id)
    event = make_event(
        log_id, sequence + 1, round(at_seconds * 1e6), kind, canonical(details), previous_hash
    )
    ends[log_id] = event.sequence, event.hash
    return event


def read_events(
    session: Session, table: type[EventColumns], log_id: str, after: int, limit: int
) -> list[Event]:
    """At most so many events of a log after a number, in order."""
    following = (
        select(table)
        .where(table.log_id == log_id, table.sequence > after)
        .order_by(table.sequence)
        .limit(limit)
    )
    names = [field.name for field in fields(Event)]
    return [Event(*(getattr(row, name) for name in names)) for row in session.scalars(following)]


def _end(session: Session, table: type[EventColumns], log_id: str) -> tuple[int, str]:
    newest = _newest(table)  # type: ignore[arg-type]  # it can be hashed, as every class
    found = session.connection().execute(newest, {"log_id": log_id}).first()
    return (found[0], found[1]) if found else (0, origin(log_id))


@cache  # to make a statement takes longer than to have it answered
def _newest(table: type[EventColumns]) -> Select[int, str]:
    of_log = select(table.sequence, table.hash).where(table.log_id == bindparam("log_id"))
    return of_log.order_by(table.sequence.desc()).limit(1)
