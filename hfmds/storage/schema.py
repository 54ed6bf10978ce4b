"""The schema of a program's database: its revision, and the upgrade to the newest one.

Each program has its migrations in its own package (`coordinator/migrations`) and its own version
table, so several programs can share one database. `migrations` runs them with Alembic. A program
that starts with the newest schema does not load Alembic.

A program upgrades an embedded SQLite by itself, because no other program uses the file. Other
replicas may still work with the older schema of a PostgreSQL, so an operator upgrades it with one
command.
"""

from __future__ import annotations

import enum
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, column, inspect, select, table
from sqlalchemy.exc import DBAPIError

from hfmds.errors import ConfigurationError
from hfmds.storage.database import (
    passing_errors_are_unavailable,
    read_session,
    shown_url,
    take_turn,
)

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 600


class SchemaState(enum.Enum):
    """How the revision of a database relates to the program."""

    EMPTY = "empty"
    OLDER = "older"
    CURRENT = "current"
    UNKNOWN = "unknown"  # a newer program made it


class Schema:
    """The tables of one program, made by the migrations in its package."""

    def __init__(self, package: str) -> None:
        """Find the program; ConfigurationError if it is not installed."""
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ConfigurationError(f"the program {package} is not installed here")
        self.program = package.rpartition(".")[2]
        self._migrations = Path(spec.origin).parent / "migrations"
        self._version_table = f"{self.program}_schema"

    @property
    def revisions(self) -> list[str]:
        """The revisions that this program knows, oldest first, from the names of their files."""
        files = (self._migrations / "versions").glob("r[0-9]*_*.py")
        return sorted(path.name.removeprefix("r").partition("_")[0] for path in files)

    @property
    def newest(self) -> str:
        """The revision that this program works with."""
        return self.revisions[-1] if self.revisions else "0000"

    def revision(self, engine: Engine) -> str | None:
        """Return the revision of the database; None before the first upgrade."""
        with read_session(engine) as session:
            return self._revision(session.connection())

    def state(self, engine: Engine) -> SchemaState:
        """Return how the revision of the database relates to the program."""
        revision = self.revision(engine)
        if revision is None:
            return SchemaState.EMPTY
        if revision == self.newest:
            return SchemaState.CURRENT
        return SchemaState.OLDER if revision in self.revisions else SchemaState.UNKNOWN

    def prepare(self, engine: Engine) -> None:
        """Upgrade the schema at a program's start if that is needed and safe.

        If it is needed and not safe, ConfigurationError tells the operator what to do.
        """
        state = self.state(engine)
        if state is SchemaState.CURRENT:
            return
        if engine.dialect.name == "sqlite":
            self.upgrade(engine)
            return
        self._require_known(engine)
        what = "no tables yet" if state is SchemaState.EMPTY else "an older revision of the tables"
        raise ConfigurationError(
            f"the database {shown_url(engine)} has {what} of the {self.program}; run this with the "
            f"same HFMDS_DATABASE_URL: hfmds database upgrade {self.program}"
        )

    def upgrade(self, engine: Engine, to: str = "head") -> None:
        """Upgrade the database in one transaction; repeating this changes nothing.

        ConfigurationError if the database has tables that this program does not know.
        """
        from hfmds.storage.migrations import migrate  # loads Alembic

        self._require_known(engine)
        try:
            with passing_errors_are_unavailable(engine), _upgrading(engine) as connection:
                before = self._revision(connection)  # another process may have upgraded it
                migrate(self._migrations, self._version_table, connection, to)
                after = self._revision(connection)
        except DBAPIError as error:
            reason = str(error.orig).partition("\n")[0]
            raise ConfigurationError(
                f"the database {shown_url(engine)} cannot be upgraded for the {self.program}: "
                f"{reason}; if it holds tables of something else, use an empty one"
            ) from error
        if before != after:
            log.info("schema upgraded", extra={"from": before or "nothing", "to": after})

    def draft(self, engine: Engine, message: str) -> Path | None:
        """Write the migration from this database to the tables of the code, if they differ.

        Developers read and commit the file, which is in the source tree.
        """
        from hfmds.storage.migrations import draft  # loads Alembic

        with engine.connect() as connection:
            number = f"{len(self.revisions) + 1:04}"
            return draft(self._migrations, self._version_table, connection, number, message)

    def _require_known(self, engine: Engine) -> None:
        if self.state(engine) is SchemaState.UNKNOWN:
            raise ConfigurationError(
                f"the database {shown_url(engine)} has revision {self.revision(engine)} of the "
                f"tables of the {self.program}, which knows none after {self.newest}; install "
                f"the newer program that made it"
            )

    def _revision(self, connection: Connection) -> str | None:
        if not inspect(connection).has_table(self._version_table):
            return None
        versions = table(self._version_table, column("version_num"))  # Alembic's, one row or none
        return connection.scalar(select(versions.c.version_num))


@contextmanager
def _upgrading(engine: Engine) -> Iterator[Connection]:
    """Yield a transaction that may change tables, with the database to itself.

    It waits longer than other writers, because the upgrade of another process may take long.
    """
    with engine.connect() as connection:
        is_sqlite = engine.dialect.name == "sqlite"
        if is_sqlite:
            connection.detach()  # the pool must not get back a connection with these settings
            cursor = connection.connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE_SECONDS}")
            # A migration copies a table and drops the old one, which must not delete rows that
            # refer to it.
            cursor.execute("PRAGMA foreign_keys = OFF")
        with connection.begin():
            take_turn(connection, _PATIENCE_SECONDS)
            yield connection
            if is_sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").all():
                raise AssertionError("a migration leaves rows that refer to nothing")
