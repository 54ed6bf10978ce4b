"""Which database the classes of a program use in a test: SQLite, or that of the test's folder.

Tests that are to run on both use the fixture `both_databases` and open `database_of(tmp_path)`;
opening the same folder again is a restart on the same database.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import MetaData, String

from hfmds.storage.database import opened_database

_FILE = "database-url"


def use_database(folder: Path, url: str) -> None:
    """From now on this is the folder's database."""
    (folder / _FILE).write_text(url)


def database_of(folder: Path) -> str:
    """The URL of the folder's database: SQLite in it, unless the test says otherwise."""
    file = folder / _FILE
    return file.read_text() if file.exists() else f"sqlite:///{folder / 'state.sqlite3'}"


def order_text_as_people_do(folder: Path, tables: MetaData) -> None:
    """Make a program's tables in a SQLite that orders text otherwise than by code points.

    So do most PostgreSQL servers, whose databases have the collation of a language; the one that
    tests start has none but "C".
    """
    ordered = MetaData()
    for table in tables.sorted_tables:
        for column in table.to_metadata(ordered).columns:
            if isinstance(column.type, String):
                column.type = String(column.type.length, collation="NOCASE")
    with opened_database(database_of(folder)) as engine:
        ordered.create_all(engine)
