"""Statements that go to the driver itself must do what SQLAlchemy would have done."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError

from hfmds.errors import Unavailable
from hfmds.storage.database import changing, looking, open_database
from hfmds.storage.prepared import Prepared

_metadata = MetaData()
_things = Table(
    "prepared_things",
    _metadata,
    Column("name", String(20), primary_key=True),
    Column("at", DateTime),
    Column("good", Boolean, nullable=False),
    Column("content", LargeBinary),
    Column("number", Integer, default=7),
)
_NAME = bindparam("called", type_=String())
_ADD = Prepared(insert(_things))
_FIND = Prepared(
    select(_things, (_things.c.number > 3).label("many")).where(_things.c.name == _NAME)
)
_CHANGE = Prepared(update(_things).where(_things.c.name == _NAME))
_REMOVE = Prepared(delete(_things).where(_things.c.name == _NAME, _things.c.good))
_ALL = Prepared(
    select(_things.c.name, _things.c.good)
    .where(_things.c.name.in_(bindparam("names", expanding=True)), _things.c.number.in_([5, 6]))
    .order_by(_things.c.name)
)
_MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678)
_ROW = {"name": "a", "at": _MOMENT, "good": True, "content": b"\x00\xff", "number": 5}


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'things.sqlite3'}"
    else:
        url = request.getfixturevalue("postgres_url")
    engine = open_database(url)
    _metadata.create_all(engine)
    yield engine
    engine.dispose()


def found(engine: Engine, name: str = "a") -> Any:
    with looking(engine) as connection:
        return _FIND.first(connection, {"called": name})


def test_values_come_back_as_their_columns_have_them(engine: Engine) -> None:
    with changing(engine) as connection:
        _ADD.change(connection, _ROW)
    row = found(engine)
    assert (row.name, row.at, row.good, bytes(row.content)) == ("a", _MOMENT, True, b"\x00\xff")
    assert (row.number, row.many) == (5, True)
    assert type(row.good) is bool
    assert found(engine, "b") is None


def test_rows_that_are_concerned_are_counted(engine: Engine) -> None:
    with changing(engine) as connection:
        _ADD.change(connection, _ROW)
        assert _CHANGE.change(connection, {"called": "a", "good": False}) == 1
        assert _CHANGE.change(connection, {"called": "b", "good": False}) == 0
        assert _REMOVE.change(connection, {"called": "a"}) == 0
        assert _CHANGE.change(connection, {"called": "a", "good": True}) == 1
        assert _REMOVE.change(connection, {"called": "a"}) == 1


def test_one_statement_takes_different_columns(engine: Engine) -> None:
    with changing(engine) as connection:
        _ADD.change(connection, _ROW)
        _CHANGE.change(connection, {"called": "a", "good": False})
        _CHANGE.change(connection, {"called": "a", "number": 3, "content": None})
    row = found(engine)
    assert (row.good, row.number, row.content) == (False, 3, None)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_parameter_that_stands_for_many_takes_any_number(engine: Engine, count: int) -> None:
    names = [f"n{number}" for number in range(6)]
    with changing(engine) as connection:
        _ADD.change_each(connection, [{**_ROW, "name": name} for name in names])
        _CHANGE.change(connection, {"called": "n0", "good": False})
    with looking(engine) as connection:
        rows = _ALL.all(connection, {"names": [*names[:count], "nobody"]})
        assert [(row.name, row.good) for row in rows] == [(n, n != "n0") for n in names[:count]]
        assert _ALL.value(connection, {"names": names[count:]}) == names[count]
        assert _ALL.value(connection, {"names": ["nobody"]}) is None


def test_what_is_changed_for_each_is_undone_together(engine: Engine) -> None:
    def add_one_twice() -> None:
        with changing(engine) as connection:
            _ADD.change_each(connection, [{**_ROW, "name": name} for name in "bcb"])

    with pytest.raises(IntegrityError):
        add_one_twice()
    with changing(engine) as connection:
        _ADD.change_each(connection, [])
    assert found(engine, "b") is None


def test_an_error_undoes_its_transaction_and_no_value_is_told(engine: Engine) -> None:
    with changing(engine) as connection:
        _ADD.change(connection, _ROW)

    def change_and_add_again() -> None:
        with changing(engine) as connection:
            _CHANGE.change(connection, {"called": "a", "good": False})
            _ADD.change(connection, _ROW)

    with pytest.raises(IntegrityError) as failure:
        change_and_add_again()
    assert "678" not in str(failure.value)
    assert found(engine).good


def test_what_is_looked_at_is_one_view(engine: Engine) -> None:
    with looking(engine) as connection:
        assert _FIND.first(connection, {"called": "a"}) is None
        with changing(engine) as other:
            _ADD.change(other, _ROW)
        assert _FIND.first(connection, {"called": "a"}) is None
    assert found(engine) is not None


def test_a_full_database_is_unavailable(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'small.sqlite3'}")
    _metadata.create_all(engine)

    def add_too_much() -> None:
        with changing(engine) as connection:
            connection.execute(text("PRAGMA max_page_count = 4"))
            _ADD.change(connection, {**_ROW, "content": bytes(100_000)})

    with pytest.raises(Unavailable):
        add_too_much()
    assert found(engine) is None
    engine.dispose()


def test_a_default_that_only_sqlalchemy_knows_is_not_forgotten(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'things.sqlite3'}")
    _metadata.create_all(engine)
    row = {name: value for name, value in _ROW.items() if name != "number"}
    with pytest.raises(TypeError, match="default"), changing(engine) as connection:
        Prepared(insert(_things)).change(connection, row)
    engine.dispose()
