"""The database of a service: SQLite next to the process, or PostgreSQL, by URL.

Synchronous: on an event loop, call through `asyncio.to_thread`.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    OperationalError,
    PendingRollbackError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from hfmds.errors import ConfigurationError, InvalidInput, Unavailable
from hfmds.storage.files import make_data_folder

_SETTING = "HFMDS_DATABASE_URL"
_SUPPORTED = "use sqlite:///file or postgresql+psycopg://user:password@host/name"

# Where the writers of this process take turns.
_lines: WeakKeyDictionary[Engine, _Line] = WeakKeyDictionary()

_AWAY = "the database is busy or away; try again"  # for strangers, too

_MOST_TOGETHER = 64  # transactions that are committed as one

# Connections are kept: one beyond the pool's size would be made anew each time.
# Errors are logged, and rows have secrets in them, such as the key of a fleet's nonces.
_OPTIONS = {"pool_size": 15, "max_overflow": 0, "hide_parameters": True}

# Execution options of our own.
_READ_ONLY = "hfmds_read_only"
_BUSY_TIMEOUT = "hfmds_busy_timeout_seconds"
_FENCE = "hfmds_fence"
_WRITERS = "hfmds_writers"

# The low byte of SQLite's error code; these pass by themselves or when somebody makes room.
_PASSING_SQLITE_ERRORS = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}

# On PostgreSQL, too, transactions that may write take turns: the first statement of each waits for
# the lock, and those after it see all that was committed before. SERIALIZABLE, with the losers
# done again, gave 95 transactions a second where this gives 400 (16 threads, the coordinator's
# tables), and some lost twelve times. A process that stands still in mid-transaction loses it:
# all others wait for it meanwhile. The lock is the program's: those that share a database have no
# table in common, and none should wait while another asks an object store.
_TAKE_TURN = text(
    "SELECT set_config('lock_timeout', :patience, true),"
    " set_config('idle_in_transaction_session_timeout', '10s', true),"
    " pg_advisory_xact_lock(:key)"
)

# So that a server that is gone without a word is noticed in half a minute, not in hours.
_POSTGRESQL_DEFAULTS = {
    "application_name": "hfmds",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


def open_database(url: str, program: str = "", *, busy_timeout_seconds: float = 10.0) -> Engine:
    """An engine for the URL, tried once; writers of several processes wait so long for each other.

    Those of `program` do: others, which have tables of their own, are not waited for.

    ConfigurationError if the URL, the driver or the file is wrong; Unavailable if the server is
    away. No message shows a password.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigurationError(f"{_SETTING} is not a database URL; {_SUPPORTED}") from None
    match parsed.get_backend_name():
        case "sqlite":
            return _open_sqlite(parsed, busy_timeout_seconds)
        case "postgresql":
            return _open_postgresql(parsed, program, busy_timeout_seconds)
        case other:
            raise ConfigurationError(f"{_SETTING}: {other} is not supported; {_SUPPORTED}")


@contextmanager
def opened_database(url: str, program: str = "") -> Iterator[Engine]:
    """The database for the time of one command."""
    engine = open_database(url, program)
    try:
        yield engine
    finally:
        engine.dispose()


def shown_url(engine: Engine) -> str:
    """The database's URL as people may see it: without the password and what we added."""
    return engine.url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def transaction(engine: Engine, *, after_commits: bool = False) -> Iterator[Session]:
    """A transaction that may write: committed at the end, rolled back on an error.

    A program has one at a time, whatever the process: it takes the write lock before its first
    statement, even if that reads, so nobody comes between what it reads and what it writes. A busy
    or vanished database raises Unavailable.

    Those of this process that wait for each other are committed together, which costs one sync of
    the disk and not one for each. Still, each is durable when its block has been left, and an error
    rolls back only the one it is raised in. Whoever does in it what no rollback undoes, such as
    deleting a file, must ask for `after_commits`: then all that it reads is durable already.
    """
    with (
        changing(engine, after_commits=after_commits) as connection,
        session_within(connection) as session,
    ):
        yield session


@contextmanager
def session_within(connection: Connection) -> Iterator[Session]:
    """A Session for a part of what is being changed: flushed at the end, and no more."""
    with (
        # Of itself, a Session begins a savepoint where the transaction is in one, as all but the
        # first of those that are committed together are, and undoes it when it is closed.
        Session(
            connection, expire_on_commit=False, join_transaction_mode="rollback_only"
        ) as session,
        session.begin(),
    ):
        yield session


@contextmanager
def changing(engine: Engine, *, after_commits: bool = False) -> Iterator[Connection]:
    """As `transaction`, for what is changed all the time: a Session takes longer than a change."""
    line = _lines[engine]
    with passing_errors_are_unavailable(engine):
        with line.turn():
            group, line.group = line.group, None
            if group and after_commits:
                group.commit()
                group = None
            group = group or _Group(engine)
            try:
                with group.member() as connection:
                    _stand_at_fence(engine, connection)
                    yield connection
            finally:
                if line.others_wait and group.may_grow:
                    line.group = group  # the next one goes on with it
                elif group.members:
                    group.commit()
        group.wait()


class _Line:
    """The writers of one process, one behind the other.

    A database has one writer. SQLite's own way of waiting is to sleep and look again, and
    PostgreSQL's takes a connection; and neither knows who waits.
    """

    def __init__(self) -> None:
        self.group: _Group | None = None  # what those before have left to be committed
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._waiting = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._count:
            self._waiting += 1
        with self._turn:
            with self._count:
                self._waiting -= 1
            yield

    @property
    def others_wait(self) -> bool:
        """In one's turn: whether it will be somebody else's next."""
        return self._waiting > 0


class _Group:
    """Transactions of several threads that are committed as one."""

    def __init__(self, engine: Engine) -> None:
        self.members = 0
        self._undone = False
        self._connection = engine.connect()
        self._ended = threading.Event()
        self._error: Exception | None = Unavailable("the database was lost before the commit")
        try:
            self._connection.begin()
            take_turn(self._connection)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def member(self) -> Iterator[Connection]:
        """One of the transactions. Those before it must not suffer from its error."""
        try:
            with self._connection.begin_nested() if self.members else nullcontext():
                yield self._connection
        except BaseException:
            if not self.members:
                self._connection.close()
            elif self._is_undone():
                self._undone = True
            raise
        self.members += 1

    def _is_undone(self) -> bool:
        """Whether SQLite has undone it all, as on a full disk, without being told to."""
        if self._connection.dialect.name != "sqlite" or self._connection.invalidated:
            return False  # PostgreSQL does so only when it is lost, and says so at the commit
        driver: Any = self._connection.connection.dbapi_connection
        return not driver.in_transaction

    @property
    def may_grow(self) -> bool:
        """Whether there is something to commit, and something may be added to it."""
        usable = not self._undone and not self._connection.invalidated
        return usable and 0 < self.members < _MOST_TOGETHER

    def commit(self) -> None:
        """End the group; whether it went well, `wait` says."""
        try:
            with self._connection:
                if self._undone:  # to commit the nothing that is left would succeed
                    return
                self._connection.commit()
            self._error = None
        except PendingRollbackError:
            pass  # the server went away in a later member's turn
        except SQLAlchemyError as error:
            self._error = error
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Block until the group is committed; raises what prevented it."""
        self._ended.wait()
        if self._error is not None:
            raise self._error


def take_turn(connection: Connection) -> None:
    """At the beginning of a transaction: wait until the program has no other one that may write."""
    if connection.dialect.name == "postgresql":  # SQLite's BEGIN IMMEDIATE has waited already
        options = connection.get_execution_options()
        patience, key = f"{1000 * options[_BUSY_TIMEOUT]:.0f}ms", _lock_key(options[_WRITERS])
        connection.execute(_TAKE_TURN, {"patience": patience, "key": key})


@cache
def _lock_key(program: str) -> int:
    """The advisory lock of a program's writers: 64 bits, as PostgreSQL wants them."""
    name = f"hfmds {program}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], signed=True)


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """A consistent view that takes no write lock; must not write."""
    with looking(engine) as connection, Session(connection) as session:
        yield session


@contextmanager
def looking(engine: Engine) -> Iterator[Connection]:
    """As `reading`, for what is asked all the time: a Session takes longer than the answer."""
    options: dict[str, Any] = {_READ_ONLY: True}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "REPEATABLE READ"  # what a read is on SQLite anyway
        options["postgresql_readonly"] = True
    with (
        passing_errors_are_unavailable(engine),
        engine.connect().execution_options(**options) as connection,
    ):
        _stand_at_fence(engine, connection)
        yield connection


def fenced(engine: Engine, fence: Callable[[Connection], None]) -> Engine:
    """The same database for somebody whose right to use it may end.

    `fence` is called at the beginning of each of its transactions and reads, inside it, and raises
    when the right has ended.
    """
    behind = engine.execution_options(**{_FENCE: fence})
    _lines[behind] = _lines[engine]
    return behind


def _stand_at_fence(engine: Engine, connection: Connection) -> None:
    fence: Callable[[Connection], None] | None = engine.get_execution_options().get(_FENCE)
    if fence:
        fence(connection)


def _open_sqlite(url: URL, busy_timeout_seconds: float) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(f"{_SETTING} names no file; use sqlite:///file")
    make_data_folder(Path(url.database).absolute().parent, setting=_SETTING)
    engine = create_engine(url, connect_args={"timeout": busy_timeout_seconds}, **_OPTIONS)
    _lines[engine] = _Line()

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for the writer
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get(_READ_ONLY):
            # Waits for nothing, so it cannot fail, and need not be done in SQLAlchemy's long way.
            connection.connection.cursor().execute("BEGIN")
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        with passing_errors_are_unavailable(engine), engine.begin() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema")
    except DBAPIError as error:
        engine.dispose()
        raise ConfigurationError(
            f"cannot use the database {url.database}: {_reason(error)}; put back a good copy, "
            f"or set {_SETTING}"
        ) from error
    return engine


def _open_postgresql(url: URL, program: str, busy_timeout_seconds: float) -> Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    try:
        # pre_ping: a connection the server or a firewall has dropped is replaced unnoticed.
        engine = create_engine(
            url.set(query={**_POSTGRESQL_DEFAULTS, **url.query}),
            pool_pre_ping=True,
            **_OPTIONS,
            execution_options={_BUSY_TIMEOUT: busy_timeout_seconds, _WRITERS: program},
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{_SETTING} asks for PostgreSQL, but its driver is missing ({error}); "
            f"pip install 'psycopg[binary]'"
        ) from error
    _lines[engine] = _Line()
    try:
        engine.connect().close()
    except OperationalError as error:
        engine.dispose()
        raise Unavailable(
            f"the database {shown_url(engine)} does not answer: "
            f"{_reason(error)}; is it running, and is {_SETTING} right?",
            public=_AWAY,
        ) from error
    return engine


@contextmanager
def database_look(engine: Engine) -> Iterator[Callable[[], None]]:
    """Yields what raises if the database does not answer.

    By a connection of its own: that all others are in use is not the database's trouble.
    """
    own = create_engine(engine.url, pool_size=1, max_overflow=0, pool_pre_ping=True)
    statement = text("PRAGMA schema_version" if own.dialect.name == "sqlite" else "SELECT 1")

    def look() -> None:
        with passing_errors_are_unavailable(own), own.connect() as connection:
            connection.execute(statement)

    try:
        yield look
    finally:
        own.dispose()


@contextmanager
def passing_errors_are_unavailable(engine: Engine) -> Iterator[None]:
    """Around use of the engine: a busy or vanished database raises Unavailable.

    What it cannot keep, such as text with a NUL in PostgreSQL, raises InvalidInput: it comes from
    callers, for whatever is ours fits the tables.
    """
    try:
        yield
    except PoolTimeoutError as error:
        raise Unavailable(
            f"all connections to the database are in use: {error}", public=_AWAY
        ) from error
    except DataError as error:
        raise InvalidInput(f"the database cannot keep this: {_reason(error)}") from error
    except DBAPIError as error:
        if not _passes(error):
            raise
        raise Unavailable(
            f"the database {shown_url(engine)} is busy or away: {_reason(error)}", public=_AWAY
        ) from error


def _passes(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):  # for it, a missing table is "operational" too
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _PASSING_SQLITE_ERRORS
    return isinstance(error, OperationalError) or error.connection_invalidated


def _reason(error: DBAPIError) -> str:
    """The driver's first line; what follows is advice we give ourselves."""
    return str(error.orig).partition("\n")[0]
