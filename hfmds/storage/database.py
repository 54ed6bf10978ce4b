"""The database of a service, by URL: SQLite beside the process, or PostgreSQL.

`write_session` and `read_session` yield an ORM Session. `write_connection` and `read_connection`
yield a Connection for plain statements, which costs less. All of them block: on an event loop, call
them through `asyncio.to_thread`.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from hfmds.errors import ConfigurationError, InvalidInput, Unavailable
from hfmds.storage.files import make_data_folder

_SETTING = "HFMDS_DATABASE_URL"
_SUPPORTED = "use sqlite:///file or postgresql+psycopg://user:password@host/name"

_AWAY = "the database is busy or away; try again"  # for clients, so without details

# The pool keeps its connections: it would open one beyond its size anew each time.
# Logs show errors, and rows hold secrets such as the key of a fleet's nonces.
_OPTIONS = {"pool_size": 15, "max_overflow": 0, "hide_parameters": True}

# Execution options of this module.
_READ_ONLY = "hfmds_read_only"
_BUSY_TIMEOUT = "hfmds_busy_timeout_seconds"
_FENCE = "hfmds_fence"
_PROGRAM = "hfmds_program"
_TURN = "hfmds_turn"

# Errors that pass by themselves, or when an operator frees space; the low byte of SQLite's code.
_PASSING_SQLITE_ERRORS = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}

# On PostgreSQL, too, the writing transactions of a program take turns. Each begins with this
# statement, which waits for the lock, so the statements after it see all earlier commits.
# SERIALIZABLE with retries gave 95 transactions per second where this gives 400 (16 threads, the
# coordinator's tables). The server ends a transaction whose process stands still, because all
# others wait for it. Programs that share a database have no table in common, so each program has
# its own lock.
_TAKE_TURN = text(
    "SELECT set_config('lock_timeout', :patience, true),"
    " set_config('idle_in_transaction_session_timeout', :idle, true),"
    " pg_advisory_xact_lock(:key)"
)

_IDLE_SECONDS = 10.0

# With these, a client notices a server that vanished in half a minute, not in hours.
_POSTGRESQL_DEFAULTS = {
    "application_name": "hfmds",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


def open_database(url: str, program: str = "", *, busy_timeout_seconds: float = 10.0) -> Engine:
    """Open the database at a URL, and try it once.

    A writer waits `busy_timeout_seconds` for the writers of other processes. On PostgreSQL it waits
    only for those of the same `program`.

    ConfigurationError means that the URL, the driver or the file is wrong; Unavailable means that
    the server is away. No message shows a password.
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
    """Open the database for the block."""
    engine = open_database(url, program)
    try:
        yield engine
    finally:
        engine.dispose()


def shown_url(engine: Engine) -> str:
    """Return the database's URL without its password and without our defaults."""
    return engine.url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def write_session(engine: Engine) -> Iterator[Session]:
    """Run the block as a transaction that may write: commit at its end, roll back on an error.

    A program has one writing transaction at a time, over all its processes. It takes the write lock
    before its first statement, even a reading one, so nothing changes between what it reads and
    what it writes. A busy or vanished database raises Unavailable.
    """
    with (
        write_connection(engine) as connection,
        Session(connection, expire_on_commit=False) as session,
        session.begin(),
    ):
        yield session


@contextmanager
def write_connection(engine: Engine) -> Iterator[Connection]:
    """Do the same as `write_session`, with a Connection."""
    # SQLite's own way to wait is to sleep and try again; PostgreSQL's way takes a connection. So
    # the writers of a process wait for each other here.
    turn: threading.Lock = engine.get_execution_options()[_TURN]
    with passing_errors_are_unavailable(engine), turn, engine.begin() as connection:
        take_turn(connection)
        _check_fence(engine, connection)
        yield connection


def take_turn(connection: Connection, patience_seconds: float | None = None) -> None:
    """Wait until the program has no other writing transaction; call it first in a transaction.

    `patience_seconds` replaces the engine's busy timeout, for a transaction that takes long.
    """
    if connection.dialect.name == "postgresql":  # SQLite's BEGIN IMMEDIATE has waited already
        options = connection.get_execution_options()
        parameters = {
            "patience": _milliseconds(patience_seconds or options[_BUSY_TIMEOUT]),
            "idle": _milliseconds(patience_seconds or _IDLE_SECONDS),
            "key": _lock_key(options[_PROGRAM]),
        }
        connection.execute(_TAKE_TURN, parameters)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}ms"


@cache
def _lock_key(program: str) -> int:
    """Return the advisory lock of a program's writers: 64 bits, as PostgreSQL wants them."""
    name = f"hfmds {program}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], signed=True)


@contextmanager
def read_session(engine: Engine) -> Iterator[Session]:
    """Give the block a consistent view that takes no write lock. The block must not write."""
    with read_connection(engine) as connection, Session(connection) as session:
        yield session


@contextmanager
def read_connection(engine: Engine) -> Iterator[Connection]:
    """Do the same as `read_session`, with a Connection."""
    options: dict[str, Any] = {_READ_ONLY: True}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "REPEATABLE READ"  # a read on SQLite is that anyway
        options["postgresql_readonly"] = True
    with (
        passing_errors_are_unavailable(engine),
        engine.connect().execution_options(**options) as connection,
    ):
        _check_fence(engine, connection)
        yield connection


def fenced(engine: Engine, fence: Callable[[Connection], None]) -> Engine:
    """Return the same database for a caller whose right to use it may end.

    Each transaction and read calls `fence` first. It raises when the right has ended.
    """
    return engine.execution_options(**{_FENCE: fence})


def _check_fence(engine: Engine, connection: Connection) -> None:
    fence: Callable[[Connection], None] | None = engine.get_execution_options().get(_FENCE)
    if fence:
        fence(connection)


def _open_sqlite(url: URL, busy_timeout_seconds: float) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(f"{_SETTING} names no file; use sqlite:///file")
    make_data_folder(Path(url.database).absolute().parent, setting=_SETTING)
    engine = create_engine(
        url,
        connect_args={"timeout": busy_timeout_seconds},
        **_OPTIONS,
        execution_options={_TURN: threading.Lock()},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the events below begin transactions, not the driver
        connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for the writer
        connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get(_READ_ONLY):
            connection.exec_driver_sql("BEGIN")
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
        # pre_ping replaces connections that the server or a firewall has dropped.
        engine = create_engine(
            url.set(query={**_POSTGRESQL_DEFAULTS, **url.query}),
            pool_pre_ping=True,
            **_OPTIONS,
            execution_options={
                _BUSY_TIMEOUT: busy_timeout_seconds,
                _PROGRAM: program,
                _TURN: threading.Lock(),
            },
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{_SETTING} asks for PostgreSQL, but its driver is missing ({error}); "
            f"pip install 'psycopg[binary]'"
        ) from error
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
def database_check(engine: Engine) -> Iterator[Callable[[], None]]:
    """Yield a function that raises Unavailable if the database does not answer.

    It has its own connection, because a busy pool does not mean that the database is away.
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
    """Turn errors inside the block into our own: a busy or vanished database is Unavailable.

    A value that the database cannot keep, such as text with a NUL in PostgreSQL, is InvalidInput:
    only callers send such values.
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
    if isinstance(error.orig, sqlite3.Error):  # its OperationalError includes a missing table
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _PASSING_SQLITE_ERRORS
    return isinstance(error, OperationalError) or error.connection_invalidated


def _reason(error: DBAPIError) -> str:
    """Return the first line of the driver's message; our messages give the advice."""
    return str(error.orig).partition("\n")[0]
