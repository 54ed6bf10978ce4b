"""How a process knows that storage does not answer; clocks are the test's."""

from __future__ import annotations

import logging
import threading

import pytest

from hfmds.errors import Unavailable
from hfmds.storage.database import database_check, open_database
from hfmds.storage.health import StorageHealth, watching
from tests.support.postgres import PostgresServer

PATIENCE = 20.0


class Storage:
    """Answers, or does not."""

    def __init__(self) -> None:
        self.now = 100.0
        self.away = False
        self.health = StorageHealth("the database", self.look, PATIENCE, lambda: self.now)

    def look(self) -> None:
        if self.away:
            raise Unavailable("postgresql://me@db.internal is away", public="it is away")

    def after(self, seconds: float) -> str | None:
        self.now += seconds
        self.health.check()
        return self.health.problem()


def test_storage_that_is_silent_for_long_is_trouble_until_it_answers() -> None:
    storage = Storage()
    assert storage.after(1000.0) is None
    storage.away = True
    assert storage.after(5.0) is None  # what fails once is none
    assert storage.after(15.0) is None
    trouble = "the database has not answered for 25 s; the log has more"
    assert storage.after(5.0) == trouble
    storage.away = False
    assert storage.after(5.0) is None


def test_the_log_is_told_once_what_is_wrong_and_that_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    storage = Storage()
    for away in (True, True, False, False):
        storage.away = away
        storage.after(5.0)
    assert [record.getMessage() for record in caplog.records] == [
        "the database does not answer: postgresql://me@db.internal is away",
        "the database answers again",
    ]


def test_a_look_that_hangs_is_no_answer_and_holds_up_nobody() -> None:
    looking, release, now = threading.Event(), threading.Event(), [100.0]

    def hang() -> None:
        looking.set()
        release.wait(60)

    health = StorageHealth("the database", hang, 0.04, lambda: now[0])
    health.start()
    assert looking.wait(60)
    assert health.problem() is None  # it is only slow
    now[0] += 1.0
    assert health.problem() == "the database has not answered for 1 s; the log has more"
    health.close()
    release.set()


def test_the_trouble_of_any_is_told() -> None:
    now, looked = [100.0], threading.Barrier(2)

    def answer() -> None:
        looked.wait(60)

    def away() -> None:
        raise Unavailable("away")

    with watching({"one": answer, "two": away}, 0.04, lambda: now[0]) as problem:
        assert problem() is None
        now[0] += 5.0
        for _ in range(3):  # the second began after this, and at the third it has ended
            looked.wait(60)
        assert problem() == "two has not answered for 5 s; the log has more"


def test_a_database_is_looked_at_by_a_connection_of_its_own(database_url: str) -> None:
    engine = open_database(database_url)
    with database_check(engine) as look:
        look()
        taken = [engine.connect() for _ in range(15)]  # all there are
        look()
        for connection in taken:
            connection.close()
    engine.dispose()


def test_a_database_server_that_is_away_and_back_is_noticed(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    engine = open_database(postgres_url)
    with database_check(engine) as look:
        look()
        postgres_server.stop()
        try:
            with pytest.raises(Unavailable):
                look()
        finally:
            postgres_server.start()
        look()
    engine.dispose()
