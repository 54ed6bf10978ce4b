"""The migrations of the programs make the tables that their code works with."""

from importlib import import_module
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData

from hfmds.storage.database import opened_database
from hfmds.storage.schema import Schema

PROGRAMS = ["coordinator", "synthesis_store"]
BASES = {
    "coordinator": ("coordinator.records.tables", "Base"),
    "synthesis_store": ("synthesis_store.tables", "StoreBase"),
}


def tables_of(program: str) -> MetaData:
    module, base = BASES[program]
    metadata: MetaData = getattr(import_module(module), base).metadata
    return metadata


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_names_of_files_tell_the_revisions(program: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(program) / "migrations"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    known = [script.revision for script in scripts.walk_revisions()]
    assert Schema(program).revisions == known[::-1]
    assert Schema(program).newest == scripts.get_current_head()


@pytest.mark.parametrize("program", PROGRAMS)
def test_migrations_make_the_tables_of_the_code(program: str, database_url: str) -> None:
    with opened_database(database_url) as engine:
        Schema(program).upgrade(engine)
        tables = tables_of(program)
        options = {"include_name": lambda name, kind, _: kind != "table" or name in tables.tables}
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts=options)
            differences = compare_metadata(context, tables)
    remedy = f'run: hfmds database draft {program} "what has changed"'
    assert differences == [], remedy


def test_programs_that_share_a_database_have_no_table_in_common() -> None:
    coordinator, store = (set(tables_of(program).tables) for program in PROGRAMS)
    assert coordinator
    assert store
    assert not coordinator & store
