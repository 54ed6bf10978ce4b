"""The suite over both databases, and what is special to each."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import IntegrityError

from hfmds.errors import ConfigurationError, Unavailable
from hfmds.storage.database import open_database, read_session, write_session
from tests.storage.database_suite import DatabaseSuite, Records, at_once, metadata, numbers, runs
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state.sqlite3"


@pytest.fixture
def engine(file: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{file}")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Engine]:
    engine = open_database(postgres_url)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


class TestSqlite(DatabaseSuite):
    @pytest.fixture
    def url(self, file: Path) -> str:
        return f"sqlite:///{file}"


class TestPostgresql(DatabaseSuite):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


# --- SQLite -------------------------------------------------------------------------------------


def test_errors_do_not_show_what_was_to_be_kept(engine: Engine) -> None:
    row = {"id": 1, "n": 123_456_789}
    with pytest.raises(IntegrityError) as failure, write_session(engine) as session:
        session.execute(insert(runs), [row, row])
    assert "123456789" not in str(failure.value)


def test_sqlite_is_set_up_to_lose_nothing(engine: Engine) -> None:
    with read_session(engine) as session:
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


def test_a_full_disk_is_unavailable_and_leaves_nothing(engine: Engine) -> None:
    with pytest.raises(Unavailable), write_session(engine) as session:
        session.execute(insert(runs), {"n": 1})
        session.execute(text("PRAGMA max_page_count = 1"))  # as many as there are
        session.execute(insert(runs), [{"n": n} for n in range(10_000)])
    with read_session(engine) as session:
        assert numbers(session) == []


# --- PostgreSQL ---------------------------------------------------------------------------------


def test_writers_of_several_processes_take_turns(postgres: Engine, postgres_url: str) -> None:
    engines = [open_database(postgres_url) for _ in range(4)]  # as different as processes'
    with write_session(postgres) as session:
        session.execute(insert(runs), {"n": 0})
    at_once(
        *(lambda one=one: [Records(one).add_one() for _ in range(10)] for one in engines)  # type: ignore[misc]
    )
    for engine in engines:
        engine.dispose()
    with read_session(postgres) as session:
        assert numbers(session) == [40]


def test_writers_of_programs_that_share_a_database_do_not_wait_for_each_other(
    postgres: Engine, postgres_url: str
) -> None:
    patience = {"busy_timeout_seconds": 0.2}
    one, again, other = (
        open_database(postgres_url, program, **patience)
        for program in ("coordinator", "coordinator", "synthesis_store")
    )
    with write_session(one):
        with write_session(other) as session:
            session.execute(insert(runs), {"n": 7})
        with pytest.raises(Unavailable), write_session(again):
            pass
    for engine in (one, again, other):
        engine.dispose()
    with read_session(postgres) as session:
        assert numbers(session) == [7]


def test_a_server_that_restarts_under_load_loses_nothing_it_said_yes_to(
    postgres: Engine, postgres_server: PostgresServer
) -> None:
    done: list[int] = []
    told: set[str] = set()
    away = threading.Event()
    stop = threading.Event()

    def insert_for_ever(worker: int) -> None:
        number = worker * 1_000_000
        while not stop.is_set():
            try:
                Records(postgres).add_once(number)
            except Unavailable as error:  # the only error there may be; the same call again
                told.add(str(error))
                away.set()
                continue
            done.append(number)
            number += 1

    failures: list[BaseException] = []

    def worker(number: int) -> None:
        try:
            insert_for_ever(number)
        except BaseException as error:  # noqa: BLE001  # it is raised below
            failures.append(error)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for signum in (signal.SIGINT, signal.SIGKILL):
            wait_for_more(done)
            away.clear()
            postgres_server.stop(signum)
            assert away.wait(30)
            postgres_server.start()
        wait_for_more(done)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert not [message for message in told if "pssst" in message]
    with read_session(postgres) as session:
        assert set(session.scalars(select(runs.c.id))) == set(done)
    assert len(done) == len(set(done))


def wait_for_more(done: list[int]) -> None:
    before = len(done)
    wait_until(lambda: len(done) >= before + 20)


# --- opening ------------------------------------------------------------------------------------


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


def test_a_wrong_password_is_told_and_hidden(postgres_url: str) -> None:
    with pytest.raises(Unavailable, match=r"password.*HFMDS_DATABASE") as no:
        open_database(postgres_url.replace("pssst", "wrong-one"))
    assert "wrong-one" not in str(no.value)
