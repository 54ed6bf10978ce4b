import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, ForeignKey, Integer, MetaData, Table, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from hfmds.errors import ConfigurationError, Unavailable
from hfmds.storage.database import open_database, reading, transaction

metadata = MetaData()
runs = Table("runs", metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
rounds = Table("rounds", metadata, Column("run", ForeignKey("runs.id")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state.sqlite3"


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{file}")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def numbers(session: Session) -> list[int | None]:
    return list(session.scalars(select(runs.c.n).order_by(runs.c.id)))


def test_a_transaction_is_kept_whole(engine: Engine, file: Path) -> None:
    with transaction(engine) as session:
        session.execute(insert(runs), [{"n": 1}, {"n": 2}])
    again = open_database(f"sqlite:///{file}")
    with reading(again) as session:
        assert numbers(session) == [1, 2]
    again.dispose()


def test_a_transaction_that_fails_leaves_nothing(engine: Engine) -> None:
    def change_then_fail() -> None:
        with transaction(engine) as session:
            session.execute(insert(runs), {"n": 1})
            session.execute(text("CREATE TABLE extra (id INTEGER)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_then_fail()
    with reading(engine) as session:
        assert numbers(session) == []
        assert session.scalar(text("SELECT count(*) FROM sqlite_schema WHERE name='extra'")) == 0


def test_sqlite_is_set_up_to_lose_nothing(engine: Engine) -> None:
    with reading(engine) as session:
        pragmas = {
            name: session.scalar(text(f"PRAGMA {name}"))
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "foreign_keys": 1,
        "busy_timeout": 10_000,
    }


def test_foreign_keys_are_enforced(engine: Engine) -> None:
    with pytest.raises(IntegrityError), transaction(engine) as session:
        session.execute(insert(rounds), {"run": 99})


def test_concurrent_read_modify_write_loses_no_step(engine: Engine) -> None:
    with transaction(engine) as session:
        session.execute(insert(runs), {"n": 0})

    def add_ten() -> None:
        for _ in range(10):
            with transaction(engine) as session:
                n = session.scalar(select(runs.c.n))
                assert n is not None
                session.execute(runs.update().values(n=n + 1))

    threads = [threading.Thread(target=add_ten) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with reading(engine) as session:
        assert numbers(session) == [40]


def test_a_reader_sees_one_moment_and_waits_for_no_writer(engine: Engine) -> None:
    with reading(engine) as reader:
        assert numbers(reader) == []
        with transaction(engine) as writer:
            writer.execute(insert(runs), {"n": 1})
            with reading(engine) as other:
                assert numbers(other) == []
        assert numbers(reader) == []
    with reading(engine) as reader:
        assert numbers(reader) == [1]


def test_a_database_that_stays_busy_is_unavailable(engine: Engine, file: Path) -> None:
    impatient = open_database(f"sqlite:///{file}", busy_timeout_seconds=0.05)
    with transaction(engine) as first:
        assert numbers(first) == []
        with pytest.raises(Unavailable) as refusal, transaction(impatient) as second:
            numbers(second)
    impatient.dispose()
    assert str(refusal.value) == (
        f"the database sqlite:///{file} is busy or away: database is locked"
    )


def test_a_fault_of_ours_is_not_called_unavailable(engine: Engine) -> None:
    with pytest.raises(OperationalError, match="no such table"), transaction(engine) as session:
        session.execute(text("SELECT * FROM no_such"))


COMMIT_THEN_DIE = """
import os, sys
from sqlalchemy import text
from hfmds.storage.database import open_database, transaction
engine = open_database(sys.argv[1])
with transaction(engine) as session:
    session.execute(text("INSERT INTO runs (n) VALUES (7)"))
with transaction(engine) as session:
    session.execute(text("INSERT INTO runs (n) VALUES (8)"))
    os.kill(os.getpid(), 9)
"""


def test_a_killed_process_keeps_what_it_committed_and_nothing_else(
    engine: Engine, file: Path
) -> None:
    killed = subprocess.run([sys.executable, "-c", COMMIT_THEN_DIE, f"sqlite:///{file}"])
    assert killed.returncode == -9
    with reading(engine) as session:
        assert numbers(session) == [7]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "not a url",
            (
                "HFMDS_DATABASE_URL is not a database URL; use sqlite:///file or "
                "postgresql+psycopg://user:password@host/name"
            ),
        ),
        (
            "mysql://u:pssst@h/d",
            (
                "HFMDS_DATABASE_URL: mysql is not supported; use sqlite:///file or "
                "postgresql+psycopg://user:password@host/name"
            ),
        ),
        ("sqlite://", "HFMDS_DATABASE_URL names no file; use sqlite:///file"),
        ("sqlite:///:memory:", "HFMDS_DATABASE_URL names no file; use sqlite:///file"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        open_database(url)
    assert str(refusal.value) == message


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.sqlite3"
    file.write_bytes(os.urandom(8192))
    with pytest.raises(ConfigurationError) as refusal:
        open_database(f"sqlite:///{file}")
    assert str(refusal.value) == (
        f"cannot use the database {file}: file is not a database; put back a good copy, "
        f"or set HFMDS_DATABASE_URL"
    )


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as refusal:
        open_database(f"sqlite:///{tmp_path}/file/state.sqlite3")
    assert str(refusal.value) == (
        f"cannot keep data in {tmp_path}/file (File exists: {tmp_path}/file); "
        f"set HFMDS_DATABASE_URL to a place this user can write to"
    )


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unable to open database file"):
        open_database(f"sqlite:///{tmp_path}")


def test_a_missing_driver_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # what a missing package looks like
    with pytest.raises(ConfigurationError) as refusal:
        open_database("postgresql://u:pssst@127.0.0.1:1/d")
    assert str(refusal.value) == (
        "HFMDS_DATABASE_URL asks for PostgreSQL, but its driver is missing "
        "(import of psycopg halted; None in sys.modules); pip install 'psycopg[binary]'"
    )


def test_a_postgresql_that_is_away_is_unavailable_and_its_password_hidden() -> None:
    with pytest.raises(Unavailable, match=r"does not answer.*HFMDS_DATABASE_URL") as refusal:
        open_database("postgresql://u:pssst@127.0.0.1:1/d")
    assert "pssst" not in str(refusal.value)
