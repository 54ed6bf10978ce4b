"""What every database must do: subclass `DatabaseSuite` and give a `url` fixture."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import (
    Column,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from hfmds.errors import Unavailable
from hfmds.storage.database import open_database, read_session, shown_url, write_session

metadata = MetaData()
runs = Table("runs", metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
rounds = Table("rounds", metadata, Column("run", ForeignKey("runs.id")))
marks = Table(
    "marks", metadata, Column("who", String(16), primary_key=True), Column("on_call", Integer)
)


def numbers(session: Session) -> list[int | None]:
    return list(session.scalars(select(runs.c.n).order_by(runs.c.id)))


def at_once(*works: Callable[[], object]) -> None:
    """Do them all at the same time, each in a thread; raises what any of them raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(len(works))

    def do(work: Callable[[], object]) -> None:
        start.wait(30)
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # it is raised below
            raised.append(error)

    threads = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


class Records:
    """As the programs' records are: each method one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add_one(self) -> None:
        with write_session(self._engine) as session:
            n = session.scalar(select(runs.c.n))
            assert n is not None
            session.execute(update(runs).values(n=n + 1))

    def add_once(self, run: int) -> bool:
        with write_session(self._engine) as session:
            if session.scalar(select(runs.c.id).where(runs.c.id == run)) is not None:
                return False
            session.execute(insert(runs), {"id": run, "n": 0})
            return True

    def go_home(self, who: str) -> None:
        """Unless nobody else would stay: true only if transactions happen one after the other."""
        with write_session(self._engine) as session:
            on_call = session.scalars(select(marks.c.who).where(marks.c.on_call == 1)).all()
            if len(on_call) > 1:
                session.execute(update(marks).where(marks.c.who == who).values(on_call=0))


COMMIT_THEN_DIE = """
import os, sys
from sqlalchemy import text
from hfmds.storage.database import open_database, write_session
engine = open_database(sys.argv[1])
with write_session(engine) as session:
    session.execute(text("INSERT INTO runs (n) VALUES (7)"))
with write_session(engine) as session:
    session.execute(text("INSERT INTO runs (n) VALUES (8)"))
    os.kill(os.getpid(), 9)
"""


ADD_FOR_EVER = """
import sys, threading
from sqlalchemy import text
from hfmds.storage.database import open_database, write_session
engine = open_database(sys.argv[1])
def add_for_ever(number):
    while True:
        with write_session(engine) as session:
            session.execute(text(f"INSERT INTO runs (id, n) VALUES ({number}, 0)"))
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
        number += 8
for number in range(8):
    threading.Thread(target=add_for_ever, args=(number,)).start()
"""


class DatabaseSuite:
    """The contract of `hfmds.storage.database`, test by test."""

    @pytest.fixture
    def engine(self, url: str) -> Iterator[Engine]:
        engine = open_database(url)
        metadata.create_all(engine)
        yield engine
        engine.dispose()

    def test_a_transaction_is_kept_whole(self, engine: Engine, url: str) -> None:
        with write_session(engine) as session:
            session.execute(insert(runs), [{"n": 1}, {"n": 2}])
        again = open_database(url)
        with read_session(again) as session:
            assert numbers(session) == [1, 2]
        again.dispose()

    def test_a_transaction_that_fails_leaves_nothing(self, engine: Engine) -> None:
        def change_then_fail() -> None:
            with write_session(engine) as session:
                session.execute(insert(runs), {"n": 1})
                session.execute(text("CREATE TABLE extra (id INTEGER)"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            change_then_fail()
        with read_session(engine) as session:
            assert numbers(session) == []
        with pytest.raises(DBAPIError, match="extra"), read_session(engine) as session:
            session.execute(text("SELECT * FROM extra"))

    def test_an_error_in_one_of_many_transactions_hits_that_one_alone(self, engine: Engine) -> None:
        refused: list[int] = []

        def add(n: int) -> None:
            with write_session(engine) as session:
                session.execute(insert(runs), {"id": n, "n": n})
                if n in (3, 5):
                    raise ZeroDivisionError

        def add_or_note(n: int) -> None:
            try:
                add(n)
            except ZeroDivisionError:
                refused.append(n)

        at_once(*(lambda n=n: add_or_note(n) for n in range(1, 9)))  # type: ignore[misc]
        assert sorted(refused) == [3, 5]
        with read_session(engine) as session:
            assert numbers(session) == [1, 2, 4, 6, 7, 8]

    def test_a_process_killed_while_many_write_keeps_all_it_acknowledged(
        self, engine: Engine, url: str
    ) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", ADD_FOR_EVER, url], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(100)]
        process.kill()
        lines += process.communicate(timeout=30)[0].splitlines(keepends=True)
        acknowledged = {int(line) for line in lines if line.endswith("\n")}
        with read_session(engine) as session:
            assert acknowledged <= set(session.scalars(select(runs.c.id)))

    def test_foreign_keys_are_enforced(self, engine: Engine) -> None:
        with pytest.raises(IntegrityError), write_session(engine) as session:
            session.execute(insert(rounds), {"run": 99})

    def test_a_reader_sees_one_moment_and_waits_for_no_writer(self, engine: Engine) -> None:
        with read_session(engine) as reader:
            assert numbers(reader) == []
            with write_session(engine) as writer:
                writer.execute(insert(runs), {"n": 1})
                with read_session(engine) as other:
                    assert numbers(other) == []
            assert numbers(reader) == []
        with read_session(engine) as reader:
            assert numbers(reader) == [1]

    def test_a_fault_of_ours_is_not_called_unavailable(self, engine: Engine) -> None:
        with pytest.raises(DBAPIError, match="no_such"), write_session(engine) as session:
            session.execute(text("SELECT * FROM no_such"))

    def test_a_killed_process_keeps_what_it_committed_and_nothing_else(
        self, engine: Engine, url: str
    ) -> None:
        killed = subprocess.run([sys.executable, "-c", COMMIT_THEN_DIE, url])
        assert killed.returncode == -9
        with read_session(engine) as session:
            assert numbers(session) == [7]

    def test_concurrent_read_modify_write_loses_no_step(self, engine: Engine) -> None:
        with write_session(engine) as session:
            session.execute(insert(runs), {"n": 0})
        records = Records(engine)
        at_once(*[lambda: [records.add_one() for _ in range(10)]] * 4)
        with read_session(engine) as session:
            assert numbers(session) == [40]

    def test_what_is_added_by_many_at_once_is_there_once(self, engine: Engine) -> None:
        records = Records(engine)
        added: list[bool] = []
        at_once(*[lambda: added.extend(records.add_once(run) for run in range(10))] * 4)
        assert sorted(added) == [False] * 30 + [True] * 10
        with read_session(engine) as session:
            assert numbers(session) == [0] * 10

    def test_transactions_happen_one_after_the_other(self, engine: Engine) -> None:
        records = Records(engine)
        for night in range(10):
            pair = [f"{night} a", f"{night} b"]
            with write_session(engine) as session:
                session.execute(update(marks).values(on_call=0))
                session.execute(insert(marks), [{"who": who, "on_call": 1} for who in pair])
            at_once(*(lambda who=who: records.go_home(who) for who in pair))  # type: ignore[misc]
            with read_session(engine) as session:
                on_call = select(marks.c.who).where(marks.c.on_call == 1)
                assert len(session.scalars(on_call).all()) == 1

    def test_a_database_that_stays_busy_is_unavailable(self, engine: Engine, url: str) -> None:
        impatient = open_database(url, busy_timeout_seconds=0.05)
        with write_session(engine) as first:
            assert numbers(first) == []
            with pytest.raises(Unavailable) as refusal, write_session(impatient) as second:
                numbers(second)
        impatient.dispose()
        busy = f"the database {shown_url(engine)} is busy or away: "
        assert str(refusal.value) in (
            f"{busy}database is locked",
            f"{busy}canceling statement due to lock timeout",
        )
        assert refusal.value.public == "the database is busy or away; try again"
