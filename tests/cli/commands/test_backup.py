"""`hfmds backup` and `hfmds restore` on a data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.settings import CoordinatorSettings
from hfmds.cli.commands.backup import DATA_DIRS
from hfmds.cli.commands.database import Program
from hfmds.cli.main import main
from hfmds.storage.database import opened_database
from hfmds.storage.schema import Schema, SchemaState
from synthesis_store.settings import StoreSettings

Output = pytest.CaptureFixture[str]


def test_backup_uses_the_folders_of_the_programs() -> None:
    assert {
        Program.COORDINATOR: CoordinatorSettings.model_fields["data_dir"].default,
        Program.SYNTHESIS_STORE: StoreSettings.model_fields["data_dir"].default,
    } == DATA_DIRS


def test_a_backup_can_be_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    schema = Schema("coordinator")
    with opened_database("sqlite:///hfmds-data/coordinator/state.sqlite3") as engine:
        schema.upgrade(engine)
    assert main(["backup", "coordinator", "b"]) == 0
    assert "b: the database and 0 blobs of the coordinator, " in capsys.readouterr().out
    assert main(["restore", "coordinator", "b", "--check"]) == 0
    assert "b is sound: the database and 0 blobs of the coord" in capsys.readouterr().out
    assert main(["restore", "coordinator", "b"]) != 0
    assert "hfmds-data/coordinator is not empty" in capsys.readouterr().err
    monkeypatch.setenv("HFMDS_DATA_DIR", "elsewhere")
    assert main(["restore", "coordinator", "b"]) == 0
    assert capsys.readouterr().out.startswith("elsewhere: the database and 0 blobs")
    with opened_database("sqlite:///elsewhere/state.sqlite3") as engine:
        assert schema.state(engine) is SchemaState.CURRENT


def test_old_backups_beyond_the_limit_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened_database("sqlite:///hfmds-data/coordinator/state.sqlite3") as engine:
        Schema("coordinator").upgrade(engine)
    assert main(["backup", "coordinator", "backups", "--keep", "1"]) == 0
    (backup,) = (tmp_path / "backups").iterdir()
    assert f"backups/{backup.name}: the database and 0 blobs" in capsys.readouterr().out
    backup.rename(backup.with_name("2026-01-01T000000"))
    assert main(["backup", "coordinator", "backups", "--keep", "1"]) == 0
    (newer,) = (tmp_path / "backups").iterdir()
    assert newer.name >= backup.name
