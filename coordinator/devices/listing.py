"""What is kept of devices, by their ids, in parts."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import Select, select

from coordinator.records.tables import DeviceRow, MemberRow

Row = TypeVar("Row", DeviceRow, MemberRow)


def by_device(table: type[Row], after: str, most: int | None) -> Select[Row]:
    """The rows by id; so many behind an id.

    By id as the database orders text: it must agree with itself on what is behind an id.
    """
    query = select(table).order_by(table.device_id).limit(most)
    return query.where(table.device_id > after) if after else query
