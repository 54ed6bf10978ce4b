"""`hfmds database ...` on real databases."""

import subprocess
import sys
from pathlib import Path

import pytest

from hfmds.cli.main import main
from hfmds.storage.database import opened_database
from hfmds.storage.schema import Schema, SchemaState
from tests.support.waiting import wait_until

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize("program", ["coordinator", "synthesis_store"])
def test_upgrade_and_status(
    program: str, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("HFMDS_DATABASE_URL", database_url)
    newest = Schema(program).newest
    assert main(["database", "status", program]) == 0
    assert f"revision none, the program needs {newest}: empty" in capsys.readouterr().out
    for _ in range(2):
        assert main(["database", "upgrade", program]) == 0
        assert f"the tables of the {program} are at {newest}" in capsys.readouterr().out
    assert main(["database", "status", program]) == 0
    shown = capsys.readouterr()
    assert f"revision {newest}, the program needs {newest}: current" in shown.out
    assert "pssst" not in shown.out + shown.err


def test_two_programs_may_share_a_database(database_url: str) -> None:
    for program in ("coordinator", "synthesis_store"):
        assert main(["database", "upgrade", program, "--database-url", database_url]) == 0
    with opened_database(database_url) as engine:
        for program in ("coordinator", "synthesis_store"):
            assert Schema(program).state(engine) is SchemaState.CURRENT


def test_a_database_must_be_named(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.delenv("HFMDS_DATABASE_URL", raising=False)
    assert main(["database", "upgrade", "coordinator"]) == 2
    assert "--database-url" in capsys.readouterr().err


@pytest.mark.integration
def test_a_program_on_postgresql_names_the_upgrade_command_and_then_works(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFMDS_DATABASE_URL", postgres_url)
    monkeypatch.setenv("HFMDS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HFMDS_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("HFMDS_METRICS_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("HFMDS_ADDRESS_FILE", str(tmp_path / "address.json"))
    refused = subprocess.run(
        [sys.executable, "-m", "synthesis_store"], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    log = refused.stdout + refused.stderr
    assert "HFMDS_DATABASE_URL: hfmds database upgrade synthesis_store" in log
    assert "pssst" not in log
    assert main(["database", "upgrade", "synthesis_store"]) == 0
    with subprocess.Popen([sys.executable, "-m", "synthesis_store"]) as process:
        try:
            ready = (tmp_path / "address.json").exists
            wait_until(lambda: ready() or process.poll() is not None)
            assert process.poll() is None
        finally:
            process.terminate()
    assert process.returncode == 0
