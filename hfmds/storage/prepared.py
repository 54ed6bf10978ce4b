"""Statements that are executed all the time, such as with every result that a device sends.

SQLAlchemy takes several times longer for one than SQLite takes to carry it out, and all other
threads wait for most of that. So on SQLite what it has compiled once goes straight to the driver;
PostgreSQL, where the way to the server takes longest, gets it as any other.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection, Delete, Dialect, Insert, Select, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

_Converter: TypeAlias = Callable[[Any], Any]
_Parameters: TypeAlias = Mapping[str, object]


class Prepared:
    """A statement, compiled once for each set of names that its parameters come with.

    Those of an INSERT or an UPDATE that names no values are its columns. Defaults of columns are
    SQLAlchemy's own doing: an INSERT must name all that it cannot do without. A parameter that
    stands for many (`expanding`) is a list of one or more, up to some thousand.
    """

    def __init__(self, statement: Select[*tuple[Any, ...]] | Insert | Update | Delete) -> None:
        self._statement = statement
        self._compiled: dict[tuple[object, ...], _ForDriver] = {}

    def first(self, connection: Connection, parameters: _Parameters) -> Any:
        """The first row of a SELECT, with its columns by name, or None."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, parameters).first()
        driver, parameters = self._for_driver(connection, parameters)
        found = driver.executed(connection, parameters).fetchone()
        return found and driver.row(found)

    def all(self, connection: Connection, parameters: _Parameters) -> Sequence[Any]:
        """All rows of a SELECT, with their columns by name."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, parameters).all()
        driver, parameters = self._for_driver(connection, parameters)
        return [*map(driver.row, driver.executed(connection, parameters))]

    def value(self, connection: Connection, parameters: _Parameters) -> Any:
        """The first column of the first row of a SELECT, or None."""
        found = self.first(connection, parameters)
        return None if found is None else found[0]

    def change(self, connection: Connection, parameters: _Parameters) -> int:
        """Carry out any other statement; how many rows an UPDATE or DELETE concerned."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, parameters).rowcount
        driver, parameters = self._for_driver(connection, parameters)
        return driver.executed(connection, parameters).rowcount

    def change_each(self, connection: Connection, parameters: Sequence[_Parameters]) -> None:
        """Carry out such a statement for each of these, all of which have the same names."""
        if not parameters:
            return
        if connection.dialect.name != "sqlite":
            connection.execute(self._statement, parameters)
            return
        driver, _ = self._for_driver(connection, parameters[0])
        driver.executed_for_each(connection, parameters)

    def _for_driver(
        self, connection: Connection, parameters: _Parameters
    ) -> tuple[_ForDriver, _Parameters]:
        lists = {name: _padded(v) for name, v in parameters.items() if isinstance(v, list)}
        if lists:
            parameters = {**parameters, **lists}
        key = (*parameters, *map(len, lists.values()))
        driver = self._compiled.get(key)
        if driver is None:  # for two threads at once: twice the same
            driver = _ForDriver(self._statement, connection.dialect, parameters)
            self._compiled[key] = driver
        return driver, parameters


def _padded(values: list[Any]) -> list[Any]:
    """The same values, the last one several times: few lengths, and few statements to compile."""
    length = 1 << (len(values) - 1).bit_length()
    return values + values[-1:] * (length - len(values))


class _ForDriver:
    """What SQLite's driver is given."""

    def __init__(self, statement: Any, dialect: Dialect, parameters: _Parameters) -> None:
        changes = isinstance(statement, Insert | Update)
        names = [*parameters] if changes else None
        compiled = statement.compile(dialect=dialect, column_keys=names)
        if compiled.insert_prefetch or compiled.update_prefetch:
            raise TypeError(f"a column's default is missing in {statement}")
        expanded = compiled.construct_expanded_state(parameters)
        self._sql = expanded.statement
        places = {
            part: (name, at)
            for name, parts in expanded.parameter_expansion.items()
            for at, part in enumerate(parts)
        }
        self._fixed: list[Any] = []  # a value for each place; of a parameter, none
        self._open: list[tuple[int, str, int | None, _Converter | None]] = []
        for part in expanded.positiontup:
            name, at = places.get(part, (part, None))
            bind = compiled.binds[name]
            convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
            value = None
            if name in parameters:
                self._open.append((len(self._fixed), name, at, convert))
            else:
                value = bind.value if at is None else bind.value[at]
                value = convert(value) if convert else value
            self._fixed.append(value)
        columns = statement.selected_columns if isinstance(statement, Select) else ()
        readers = tuple(_reader(column.type, dialect) for column in columns)
        self._readers = readers if any(readers) else ()
        self._row: Any = namedtuple("Found", [column.key for column in columns])  # type: ignore[misc]

    def executed(self, connection: Connection, parameters: _Parameters) -> sqlite3.Cursor:
        return self._carried_out(connection, "execute", self._bound(parameters))

    def executed_for_each(self, connection: Connection, parameters: Sequence[_Parameters]) -> None:
        self._carried_out(connection, "executemany", [*map(self._bound, parameters)])

    def row(self, found: tuple[Any, ...]) -> Any:
        if not self._readers:
            return self._row._make(found)
        return self._row._make(
            convert(value) if convert else value
            for value, convert in zip(found, self._readers, strict=True)
        )

    def _bound(self, parameters: _Parameters) -> list[Any]:
        bound = self._fixed.copy()
        for place, name, at, convert in self._open:
            value: Any = parameters[name]
            if at is not None:
                value = value[at]
            bound[place] = convert(value) if convert else value
        return bound

    def _carried_out(self, connection: Connection, how: str, bound: list[Any]) -> sqlite3.Cursor:
        if not connection.in_transaction():
            connection.begin()  # as a first statement of SQLAlchemy's would
        driver: Any = connection.connection.dbapi_connection
        try:
            cursor: sqlite3.Cursor = getattr(driver, how)(self._sql, bound)
        except sqlite3.Error as error:  # as SQLAlchemy raises it
            raise DBAPIError.instance(
                self._sql, None, error, sqlite3.Error, hide_parameters=True
            ) from error
        return cursor


def _reader(kind: TypeEngine[Any], dialect: Dialect) -> _Converter | None:
    return kind.dialect_impl(dialect).result_processor(dialect, None)
