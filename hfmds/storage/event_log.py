"""An event log in a database: programs append to it and read it, and never change it.

A program writes an event in the transaction of the change that the event describes. So the
database has both or neither. A program has one writing transaction at a time
(`hfmds.storage.database`), also with several replicas. So a log has exactly one end. Each program
has its own table with these columns.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import cache

from sqlalchemy import BigInteger, Connection, Select, String, bindparam, insert, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from hfmds.event_chain import Event, canonical, make_event, origin


class EventColumns:
    """The columns of an event, with the names of its fields."""

    log_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True)  # from 1, without gaps
    at_microseconds: Mapped[int] = mapped_column(BigInteger)  # an integer, because it is hashed
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
    """Append an event to a log; `columns` are the columns that only this table has."""
    newest = _newest_event(table)  # type: ignore[arg-type]  # mypy: a class has no hash
    end = connection.execute(newest, {"of_log": log_id}).first()
    sequence, previous_hash = end or (0, origin(log_id))
    event = make_event(
        log_id, sequence + 1, round(at_seconds * 1e6), kind, canonical(details), previous_hash
    )
    connection.execute(insert(table), {**asdict(event), **columns})


@cache
def _newest_event(table: type[EventColumns]) -> Select[int, str]:
    """Return the statement that finds a log's end; building it takes longer than running it."""
    return (
        select(table.sequence, table.hash)
        .where(table.log_id == bindparam("of_log"))
        .order_by(table.sequence.desc())
        .limit(1)
    )


def read_events(
    session: Session, table: type[EventColumns], log_id: str, after: int, limit: int
) -> list[Event]:
    """Return at most `limit` events of a log, in order, starting after a sequence number."""
    following = (
        select(table)
        .where(table.log_id == log_id, table.sequence > after)
        .order_by(table.sequence)
        .limit(limit)
    )
    names = [field.name for field in fields(Event)]
    return [Event(*(getattr(row, name) for name in names)) for row in session.scalars(following)]
