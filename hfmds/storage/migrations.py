"""The schema of a program's database: which revision it has, and how it gets to the one we know.

Each program has its migrations in its own package (`coordinator/migrations`), run by Alembic, and a
version table of its own, so that several programs may share one database.

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
from typing import Any, Literal

from alembic import command, context
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator

from hfmds.errors import ConfigurationError
from hfmds.storage.database import passing_errors_are_unavailable, reading, shown_url, take_turn

log = logging.getLogger(__name__)
logging.getLogger("alembic").setLevel(logging.WARNING)  # what it does we say ourselves


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
        self._config = Config()
        folder = str(Path(found.origin).parent / "migrations")
        self._config.set_main_option("script_location", folder.replace("%", "%%"))
        self._config.set_main_option("path_separator", "os")
        self._config.set_main_option("file_template", "r%%(rev)s_%%(slug)s")
        self._config.attributes["version_table"] = f"{self.program}_schema"
        self._scripts = ScriptDirectory.from_config(self._config)

    @property
    def newest(self) -> str:
        """The revision this program works with."""
        return self._scripts.get_current_head() or "0000"

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
        known = {script.revision for script in self._scripts.walk_revisions()}
        return SchemaState.OLDER if revision in known else SchemaState.UNKNOWN

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
        self._require_known(engine)
        try:
            with passing_errors_are_unavailable(engine), _upgrading(engine) as connection:
                before = self._revision(connection)  # under the lock: another may have been here
                with self._over(connection):
                    command.upgrade(self._config, to)
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
        number = len(list(self._scripts.walk_revisions())) + 1
        with engine.connect() as connection, self._over(connection):
            script = command.revision(
                self._config,
                message,
                autogenerate=True,
                rev_id=f"{number:04}",
                process_revision_directives=_nothing_for_nothing,
            )
        return Path(script.path) if isinstance(script, Script) else None

    def _require_known(self, engine: Engine) -> None:
        if self.state(engine) is SchemaState.UNKNOWN:
            raise ConfigurationError(
                f"the database {shown_url(engine)} has revision {self.revision(engine)} of the "
                f"tables of the {self.program}, which knows none after {self.newest}; install "
                f"the newer program that made it"
            )

    def _revision(self, connection: Connection) -> str | None:
        options = {"version_table": self._config.attributes["version_table"]}
        return MigrationContext.configure(connection, opts=options).get_current_revision()

    @contextmanager
    def _over(self, connection: Connection) -> Iterator[None]:
        """Inside, Alembic's commands work on this connection."""
        self._config.attributes["connection"] = connection
        try:
            yield
        finally:
            del self._config.attributes["connection"]


def run_migrations(tables: MetaData) -> None:
    """What the `env.py` of a program's migrations does; called by Alembic's commands only."""
    context.configure(
        connection=context.config.attributes["connection"],
        version_table=context.config.attributes["version_table"],
        target_metadata=tables,
        include_name=lambda name, kind, _: kind != "table" or name in tables.tables,
        render_as_batch=True,  # SQLite changes a table by copying it
        render_item=_plain_type,
    )
    context.run_migrations()


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


def _plain_type(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Alembic's hook: a migration must not depend on types of ours, which change with the code."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    return False


def _nothing_for_nothing(_: Any, __: Any, directives: list[Any]) -> None:
    """Alembic's hook: no file for a migration without operations."""
    if directives[0].upgrade_ops.is_empty():
        directives.clear()
