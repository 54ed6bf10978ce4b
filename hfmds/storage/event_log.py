"""An event log in a database: appended to, read, and never changed.

An event is written in the transaction of what it tells of: both are there, or neither. A
transaction that may write has the database for itself (`hfmds.storage.database`), also with several
replicas, so a log has one end. Each program has a table of its own with these columns.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

from sqlalchemy import BigInteger, Connection, String, bindparam, insert, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from hfmds.event_chain import Event, canonical, make_event, origin
from hfmds.storage.prepared import Prepared

_FIELDS = tuple(field.name for field in fields(Event))


class EventColumns:
    """The columns of an event, named as its fields are."""

    log_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)  # from 1, without gaps
    at_microseconds: Mapped[int] = mapped_column(BigInteger)  # whole, since it is hashed
    kind: Mapped[str] = mapped_column(String(32))
    details: Mapped[str]  # a JSON object in canonical form
    previous_hash: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


def add_event(
    connection: Connection,
    table: type[EventColumns],
    log_id: str,
    at_seconds: float,
    kind: str,
    details: dict[str, object],
    **columns: object,
) -> None:
    """Within a transaction: continue a log by an event; `columns` are those of its table alone."""
    newest, adding = _statements(table)  # type: ignore[arg-type]  # it can be hashed, as every class
    end = newest.first(connection, {"log_id": log_id})
    sequence, previous_hash = (end.sequence, end.hash) if end else (0, origin(log_id))
    event = make_event(
        log_id, sequence + 1, round(at_seconds * 1e6), kind, canonical(details), previous_hash
    )
    adding.change(connection, {**{name: getattr(event, name) for name in _FIELDS}, **columns})


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
    return [Event(*(getattr(row, name) for name in _FIELDS)) for row in session.scalars(following)]


@cache  # to make a statement takes longer than to have it answered
def _statements(table: type[EventColumns]) -> tuple[Prepared, Prepared]:
    """Where a log ends, and what adds to it."""
    of_log = select(table.sequence, table.hash).where(table.log_id == bindparam("log_id"))
    return Prepared(of_log.order_by(table.sequence.desc()).limit(1)), Prepared(insert(table))
