"""The contracts are well-formed, documented, and only ever grow."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROTOS = REPOSITORY / "protos"
BUF = Path(sys.executable).with_name("buf")


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def committed(revision: str) -> bool:
    """Whether a revision is here and has contracts."""
    return run("git", "cat-file", "-e", f"{revision}:protos/buf.yaml").returncode == 0


def baseline() -> str | None:
    """Return the last release with contracts. A commit without a release would match itself."""
    releases = run("git", "tag", "--list", "v*", "--sort=-version:refname").stdout.split()
    return next(filter(committed, releases), None)


def test_contracts_pass_lint() -> None:
    result = run(BUF, "lint", PROTOS)
    assert result.returncode == 0, result.stdout + result.stderr


def test_contracts_do_not_break_those_of_the_last_release(tmp_path: Path) -> None:
    revision = baseline()
    if revision is None:
        pytest.skip("no release has contracts yet: any change is allowed")
    archive = tmp_path / "release.tar"
    exported = run("git", "archive", f"--output={archive}", revision, "protos")
    assert exported.returncode == 0, exported.stderr
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    result = run(BUF, "breaking", PROTOS, "--against", tmp_path / "protos")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_check_notices_a_removed_field(tmp_path: Path) -> None:
    changed = tmp_path / "protos"
    shutil.copytree(PROTOS, changed)
    contract = changed / "hfmds/v1/common.proto"
    kept = [line for line in contract.read_text().splitlines() if "size_bytes = 2" not in line]
    contract.write_text("\n".join(kept))
    result = run(BUF, "breaking", changed, "--against", PROTOS)
    assert result.returncode != 0
    assert "size_bytes" in result.stdout
