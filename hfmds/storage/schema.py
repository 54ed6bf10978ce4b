"""The schema of a program's database: which revision it has, and how it gets to the one we know.

Each program has its migrations in its own package (`coordinator/migrations`), and a version table
of its own, so that several programs may share one database. Alembic runs them (`migrations`), and
is loaded when there is one to run: a program that starts on its own schema does without.

Who upgrades: an embedded SQLite is made and upgraded by the program that opens it, since it alone
uses the file and the upgrade is one transaction. A PostgreSQL may be shared with programs that are
still at work with the older schema, so there an operator decides when, with one command.
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
from hfmds.storage.database import passing_errors_are_unavailable, reading, shown_url, take_turn

log = logging.getLogger(__name__)


class SchemaState(enum.Enum):
    """What a program finds in its database."""

    EMPTY = "empty"
    OLDER = "older"
    CURRENT = "current"
    UNKNOWN = "unknown"  # made by a newer program


class Schema:
    """The tables of one program, as the migrations in its package make them."""

    def __init__(self, package: str) -> None:
        """ConfigurationError if there is no such program here."""
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise ConfigurationError(f"the program {package} is not installed here")
        self.program = package.rpartition(".")[2]
        self._migrations = Path(found.origin).parent / "migrations"
        self._version_table = f"{self.program}_schema"

    @property
    def revisions(self) -> list[str]:
        """All that this program knows, oldest first, by the names of their files."""
        files = (self._migrations / "versions").glob("r[0-9]*_*.py")
        return sorted(path.name.removeprefix("r").partition("_")[0] for path in files)

    @property
    def newest(self) -> str:
        """The revision this program works with."""
        return self.revisions[-1] if self.revisions else "0000"

    def revision(self, engine: Engine) -> str | None:
        """The revision the database has; None before the first upgrade."""
        with reading(engine) as session:
            return self._revision(session.connection())

    def state(self, engine: Engine) -> SchemaState:
        """How the database's revision relates to ours."""
        revision = self.revision(engine)
        if revision is None:
            return SchemaState.EMPTY
        if revision == self.newest:
            return SchemaState.CURRENT
        return SchemaState.OLDER if revision in self.revisions else SchemaState.UNKNOWN

    def prepare(self, engine: Engine) -> None:
        """At a program's start: nothing if the schema is ours, an upgrade if that is safe.

        ConfigurationError says what to do otherwise.
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
        """Bring the database to our revision, whole or not at all; again, it changes nothing.

        ConfigurationError if what is there is not known to this program.
        """
        from hfmds.storage.migrations import migrate  # with Alembic

        self._require_known(engine)
        try:
            with passing_errors_are_unavailable(engine), _upgrading(engine) as connection:
                before = self._revision(connection)  # under the lock: another may have been here
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

        For developers: the file is in the source tree, to be read and committed.
        """
        from hfmds.storage.migrations import draft  # with Alembic

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
    """A transaction that may change tables, alone."""
    with engine.connect() as connection:
        sqlite = engine.dialect.name == "sqlite"
        if sqlite:
            # A table that is copied is dropped, which must not touch the rows that refer to it.
            connection.detach()  # so that nobody else gets a connection without the checks
            connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")
        with connection.begin():
            take_turn(connection)
            yield connection
            if sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").all():
                raise AssertionError("a migration leaves rows that refer to nothing")
