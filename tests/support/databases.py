"""Chooses the database of a test's folder: SQLite, or a PostgreSQL database.

A test that runs on both uses the fixture `both_databases` and opens `database_of(tmp_path)`. To
open the same folder again is a restart on the same database.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import MetaData, String

from hfmds.storage.database import opened_database

_FILE = "database-url"


def use_database(folder: Path, url: str) -> None:
    """Make this the database of the folder."""
    (folder / _FILE).write_text(url)


def database_of(folder: Path) -> str:
    """Return the URL of the folder's database, by default a SQLite file in the folder."""
    file = folder / _FILE
    return file.read_text() if file.exists() else f"sqlite:///{folder / 'state.sqlite3'}"


def order_text_without_case(folder: Path, tables: MetaData) -> None:
    """Create a program's tables in a SQLite database that does not order text by code points.

    Most PostgreSQL databases have the collation of a language. The one of the tests has only "C".
    """
    ordered = MetaData()
    for table in tables.sorted_tables:
        for column in table.to_metadata(ordered).columns:
            if isinstance(column.type, String):
                column.type = String(column.type.length, collation="NOCASE")
    with opened_database(database_of(folder)) as engine:
        ordered.create_all(engine)
