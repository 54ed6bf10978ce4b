"""Runs and drafts the migrations of a program's database with Alembic; `schema` decides when."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from alembic import command, context
from alembic.config import Config
from alembic.script import Script
from sqlalchemy import Connection, MetaData
from sqlalchemy.types import TypeDecorator


def migrate(folder: Path, version_table: str, connection: Connection, to: str) -> None:
    """Run the migrations of a folder up to a revision, in the connection's transaction."""
    command.upgrade(_config(folder, version_table, connection), to)


def draft(
    folder: Path, version_table: str, connection: Connection, revision: str, message: str
) -> Path | None:
    """Write the migration from this database to the tables of the code, if they differ."""
    script = command.revision(
        _config(folder, version_table, connection),
        message,
        autogenerate=True,
        rev_id=revision,
        process_revision_directives=_skip_empty,
    )
    return Path(script.path) if isinstance(script, Script) else None


def _config(folder: Path, version_table: str, connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "r%%(rev)s_%%(slug)s")
    config.attributes.update(version_table=version_table, connection=connection)
    return config


def run_migrations(tables: MetaData) -> None:
    """Run the migrations; only the `env.py` of a program's migrations calls this."""
    context.configure(
        connection=context.config.attributes["connection"],
        version_table=context.config.attributes["version_table"],
        target_metadata=tables,
        include_name=lambda name, kind, _: kind != "table" or name in tables.tables,
        render_as_batch=True,  # SQLite changes a table by copying it
        render_item=_plain_type,
    )
    context.run_migrations()


def _plain_type(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Render our own types as plain ones: Alembic's hook.

    A migration must not depend on types that change with the code.
    """
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    return False


def _skip_empty(_: Any, __: Any, directives: list[Any]) -> None:
    """Write no file for a migration without operations: Alembic's hook."""
    if directives[0].upgrade_ops.is_empty():
        directives.clear()
