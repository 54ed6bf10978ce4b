"""`hfmds database ...`: the tables of the programs, in the database that they are told to use."""

from __future__ import annotations

import enum
import tempfile
from typing import Annotated

import typer

from hfmds.cli.terminal import output
from hfmds.storage.database import opened_database, shown_url
from hfmds.storage.schema import Schema

app = typer.Typer(
    help="Upgrade the tables of the programs in a PostgreSQL database. (An embedded SQLite is "
    "upgraded by the program that uses it.)",
    no_args_is_help=True,
)


class Program(enum.StrEnum):
    """A program that keeps tables, by the name of its package."""

    COORDINATOR = "coordinator"
    SYNTHESIS_STORE = "synthesis_store"


ProgramName = Annotated[Program, typer.Argument(help="Whose tables.")]
Url = Annotated[
    str,
    typer.Option(
        "--database-url",
        envvar="HFMDS_DATABASE_URL",
        metavar="URL",
        help="The database, as the program is told. A password is better kept in the variable.",
        show_envvar=True,
    ),
]


@app.command()
def upgrade(program: ProgramName, database_url: Url) -> None:
    """Bring the tables to the revision this version of the program works with.

    Whole or not at all; again, it changes nothing. Stop the program before, if it is older.
    """
    schema = Schema(program.value)
    with opened_database(database_url, program.value) as engine:
        schema.upgrade(engine)
        _say(f"{shown_url(engine)}: the tables of the {program.value} are at {schema.newest}")


@app.command()
def status(program: ProgramName, database_url: Url) -> None:
    """Say which revision the tables have, and which one the program works with."""
    schema = Schema(program.value)
    with opened_database(database_url) as engine:
        found = schema.revision(engine) or "none"
        state = schema.state(engine).value
        _say(
            f"{shown_url(engine)}: {program.value}: revision {found}, the program works with "
            f"{schema.newest}: {state}"
        )


@app.command(hidden=True)
def draft(program: ProgramName, message: Annotated[str, typer.Argument()]) -> None:
    """For developers: write a migration for what has changed in the program's `tables.py`."""
    schema = Schema(program.value)
    with (
        tempfile.TemporaryDirectory() as folder,
        opened_database(f"sqlite:///{folder}/scratch.sqlite3") as engine,
    ):
        schema.upgrade(engine)
        path = schema.draft(engine, message)
    _say(f"{path}: read it, then run make format" if path else "nothing has changed")


def _say(text: str) -> None:
    output().print(text, markup=False, soft_wrap=True)
