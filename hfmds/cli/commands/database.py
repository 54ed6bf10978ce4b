"""`hfmds database ...`: upgrade the tables of a program in its database."""

from __future__ import annotations

import enum
import tempfile
from typing import Annotated

import typer

from hfmds.cli.terminal import output
from hfmds.storage.database import opened_database, shown_url
from hfmds.storage.schema import Schema

app = typer.Typer(
    help="Upgrade the tables of the programs in a PostgreSQL database. (A program upgrades its "
    "embedded SQLite itself.)",
    no_args_is_help=True,
)


class Program(enum.StrEnum):
    """A program that keeps tables, by the name of its package."""

    COORDINATOR = "coordinator"
    SYNTHESIS_STORE = "synthesis_store"


ProgramName = Annotated[Program, typer.Argument(help="The program whose tables they are.")]
Url = Annotated[
    str,
    typer.Option(
        "--database-url",
        envvar="HFMDS_DATABASE_URL",
        metavar="URL",
        help="URL of the database. Put a password into the variable, not into the option.",
        show_envvar=True,
    ),
]


@app.command()
def upgrade(program: ProgramName, database_url: Url) -> None:
    """Upgrade the tables to the revision of this version of the program.

    One transaction does all of it; a second call changes nothing. Stop an older program before.
    """
    schema = Schema(program.value)
    with opened_database(database_url, program.value) as engine:
        schema.upgrade(engine)
        _print(f"{shown_url(engine)}: the tables of the {program.value} are at {schema.newest}")


@app.command()
def status(program: ProgramName, database_url: Url) -> None:
    """Show the revision of the tables and the revision that the program needs."""
    schema = Schema(program.value)
    with opened_database(database_url) as engine:
        revision = schema.revision(engine) or "none"
        state = schema.state(engine).value
        _print(
            f"{shown_url(engine)}: {program.value}: revision {revision}, the program needs "
            f"{schema.newest}: {state}"
        )


@app.command(hidden=True)
def draft(program: ProgramName, message: Annotated[str, typer.Argument()]) -> None:
    """Write a migration for changes in the program's `tables.py` (for developers)."""
    schema = Schema(program.value)
    with (
        tempfile.TemporaryDirectory() as folder,
        opened_database(f"sqlite:///{folder}/scratch.sqlite3") as engine,
    ):
        schema.upgrade(engine)
        path = schema.draft(engine, message)
    _print(f"{path}: read it, then run make format" if path else "nothing has changed")


def _print(text: str) -> None:
    output().print(text, markup=False, soft_wrap=True)
