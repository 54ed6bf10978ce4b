"""How a database gets to the revision its program knows, on both databases."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from hfmds.errors import ConfigurationError, Unavailable
from hfmds.storage.database import open_database, read_session, shown_url, write_session
from hfmds.storage.schema import Schema, SchemaState

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def schema() -> Schema:
    return Schema("tests.storage.toy")


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_database(database_url)
    yield engine
    engine.dispose()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def claim_revision(engine: Engine, revision: str) -> None:
    with write_session(engine) as session:
        session.execute(text(f"UPDATE toy_schema SET version_num = '{revision}'"))


def refusal_of(schema: Schema, engine: Engine) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        schema.prepare(engine)
    return str(refusal.value)


def test_an_upgrade_makes_the_tables_and_may_be_repeated(schema: Schema, engine: Engine) -> None:
    assert schema.state(engine) is SchemaState.EMPTY
    schema.upgrade(engine)
    assert schema.state(engine) is SchemaState.CURRENT
    assert schema.revision(engine) == schema.newest == "0002"
    assert tables(engine) == {"shelves", "books", "toy_schema"}
    schema.upgrade(engine)
    schema.prepare(engine)
    assert schema.revision(engine) == "0002"


def test_an_upgrade_keeps_what_is_there(schema: Schema, engine: Engine) -> None:
    schema.upgrade(engine, to="0001")
    assert schema.state(engine) is SchemaState.OLDER
    with write_session(engine) as session:
        session.execute(text("INSERT INTO shelves (id) VALUES (1), (2)"))
        session.execute(text("INSERT INTO books (id, shelf) VALUES (7, 1), (8, 2)"))
    schema.upgrade(engine)
    with read_session(engine) as session:
        books = session.execute(
            text("SELECT books.id, label FROM books JOIN shelves ON shelf = shelves.id ORDER BY 1")
        )
        assert [tuple(row) for row in books] == [(7, "shelf 1"), (8, "shelf 2")]


def test_an_upgrade_that_fails_changes_nothing(schema: Schema, engine: Engine) -> None:
    with write_session(engine) as session:
        session.execute(text("CREATE TABLE books (mine INTEGER)"))
    with pytest.raises(ConfigurationError) as refusal:
        schema.upgrade(engine)
    assert str(refusal.value).startswith(
        f"the database {shown_url(engine)} cannot be upgraded for the toy: "
    )
    assert "books" in str(refusal.value)
    assert str(refusal.value).endswith("if it holds tables of something else, use an empty one")
    assert tables(engine) == {"books"}


def test_tables_of_a_newer_program_are_refused(schema: Schema, engine: Engine) -> None:
    schema.upgrade(engine)
    claim_revision(engine, "0003")
    assert schema.state(engine) is SchemaState.UNKNOWN
    message = (
        f"the database {shown_url(engine)} has revision 0003 of the tables of the toy, which "
        f"knows none after 0002; install the newer program that made it"
    )
    assert refusal_of(schema, engine) == message
    with pytest.raises(ConfigurationError, match="0003"):
        schema.upgrade(engine)
    assert schema.revision(engine) == "0003"


UPGRADE = """
import sys
from hfmds.storage.database import opened_database
from hfmds.storage.schema import Schema
with opened_database(sys.argv[1]) as engine:
    Schema("tests.storage.toy").upgrade(engine)
"""


def test_several_may_upgrade_at_once(schema: Schema, engine: Engine, database_url: str) -> None:
    upgrades = [
        subprocess.Popen([sys.executable, "-c", UPGRADE, database_url], cwd=REPOSITORY)
        for _ in range(2)
    ]
    assert [upgrade.wait() for upgrade in upgrades] == [0, 0]
    assert schema.state(engine) is SchemaState.CURRENT


def test_an_upgrade_waits_longer_for_another_than_writers_do(
    schema: Schema, engine: Engine, database_url: str
) -> None:
    hurried = open_database(database_url, busy_timeout_seconds=0.05)
    with ThreadPoolExecutor() as threads, write_session(engine):
        with pytest.raises(Unavailable), write_session(hurried):
            pass
        upgrade = threads.submit(schema.upgrade, hurried)
        with pytest.raises(TimeoutError):
            upgrade.result(0.5)  # ten times as long as a writer waits
    upgrade.result()
    assert schema.state(hurried) is SchemaState.CURRENT
    hurried.dispose()


def test_an_embedded_database_is_made_and_upgraded_by_its_program(
    schema: Schema, tmp_path: Path
) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/state.sqlite3")
    schema.prepare(engine)
    assert schema.state(engine) is SchemaState.CURRENT
    engine.dispose()
    older = open_database(f"sqlite:///{tmp_path}/older.sqlite3")
    schema.upgrade(older, to="0001")
    schema.prepare(older)
    assert schema.state(older) is SchemaState.CURRENT
    older.dispose()


def test_a_postgresql_waits_for_the_operators_command(schema: Schema, postgres_url: str) -> None:
    engine = open_database(postgres_url)
    remedy = "run this with the same HFMDS_DATABASE_URL: hfmds database upgrade toy"
    assert refusal_of(schema, engine) == (
        f"the database {shown_url(engine)} has no tables yet of the toy; {remedy}"
    )
    assert tables(engine) == set()
    schema.upgrade(engine, to="0001")
    assert refusal_of(schema, engine) == (
        f"the database {shown_url(engine)} has an older revision of the tables of the toy; {remedy}"
    )
    assert schema.revision(engine) == "0001"
    engine.dispose()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no_such_program is not installed here"):
        Schema("no_such_program")
