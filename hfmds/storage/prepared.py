"""Statements that are executed all the time, such as with every batch that a device sends.

SQLAlchemy takes several times longer for one than SQLite takes to carry it out, and all other
threads wait for most of that. So on SQLite what it has compiled once goes straight to the driver;
PostgreSQL, where the way to the server takes longest, gets it as any other.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Delete, Dialect, Insert, Select, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

_Converter = Callable[[Any], Any]


class Prepared:
    """A statement whose parameters always have the same names.

    Those of an INSERT or an UPDATE that names no values are its columns. Defaults of columns are
    SQLAlchemy's own doing: an INSERT must name all that it cannot do without.
    """

    def __init__(self, statement: Select[*tuple[Any, ...]] | Insert | Update | Delete) -> None:
        self._statement = statement
        self._for_driver: _ForDriver | None = None

    def first(self, connection: Connection, parameters: Mapping[str, object]) -> Any:
        """The first row of a SELECT, with its columns by name, or None."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, parameters).first()
        compiled = self._compiled(connection, parameters)
        found = compiled.executed(connection, parameters).fetchone()
        return found and compiled.row(found)

    def change(self, connection: Connection, parameters: Mapping[str, object]) -> int:
        """Carry out any other statement; how many rows an UPDATE or DELETE concerned."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, parameters).rowcount
        return self._compiled(connection, parameters).executed(connection, parameters).rowcount

    def _compiled(self, connection: Connection, parameters: Mapping[str, object]) -> _ForDriver:
        if self._for_driver is None:  # by two threads at once: twice the same
            self._for_driver = _ForDriver(self._statement, connection.dialect, list(parameters))
        return self._for_driver


class _ForDriver:
    """What SQLite's driver is given."""

    def __init__(self, statement: Any, dialect: Dialect, names: list[str]) -> None:
        changes = isinstance(statement, Insert | Update)
        compiled = statement.compile(dialect=dialect, column_keys=names if changes else None)
        if compiled.insert_prefetch or compiled.update_prefetch:
            raise TypeError(f"a column's default is missing in {statement}")
        self._sql = str(compiled)
        self._fixed = {
            name: bind.value for name, bind in compiled.binds.items() if not bind.required
        }
        self._order = tuple(compiled.positiontup)
        types = {name: bind.type for name, bind in compiled.binds.items()}
        self._binders = tuple(_binder(types[name], dialect) for name in self._order)
        columns = statement.selected_columns if isinstance(statement, Select) else ()
        self._readers = tuple(_reader(column.type, dialect) for column in columns)
        self._row: Any = namedtuple("Found", [column.key for column in columns])  # type: ignore[misc]

    def executed(self, connection: Connection, parameters: Mapping[str, object]) -> sqlite3.Cursor:
        values = {**self._fixed, **parameters}
        bound = [
            convert(values[name]) if convert else values[name]
            for name, convert in zip(self._order, self._binders, strict=True)
        ]
        if not connection.in_transaction():
            connection.begin()  # as a first statement of SQLAlchemy's would
        driver: Any = connection.connection.dbapi_connection
        try:
            cursor: sqlite3.Cursor = driver.execute(self._sql, bound)
        except sqlite3.Error as error:  # as SQLAlchemy raises it
            raise DBAPIError.instance(
                self._sql, None, error, sqlite3.Error, hide_parameters=True
            ) from error
        return cursor

    def row(self, found: tuple[Any, ...]) -> Any:
        return self._row._make(
            convert(value) if convert else value
            for value, convert in zip(found, self._readers, strict=True)
        )


def _binder(kind: TypeEngine[Any], dialect: Dialect) -> _Converter | None:
    return kind.dialect_impl(dialect).bind_processor(dialect)


def _reader(kind: TypeEngine[Any], dialect: Dialect) -> _Converter | None:
    return kind.dialect_impl(dialect).result_processor(dialect, None)
