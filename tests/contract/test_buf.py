"""The contracts are well-formed, documented, and only ever grow."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROTOS = REPOSITORY / "protos"
COMPATIBILITY = (REPOSITORY / "docs/compatibility.md").read_text()
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


def first_release() -> str:
    """Return the commit of 0.1.0, as docs/compatibility.md records it."""
    recorded = re.search(r"^\| 0\.1\.0 \| `([0-9a-f]{40})` \|$", COMPATIBILITY, re.MULTILINE)
    assert recorded, "docs/compatibility.md does not name the commit of 0.1.0"
    return recorded[1]


def test_contracts_pass_lint() -> None:
    result = run(BUF, "lint", PROTOS)
    assert result.returncode == 0, result.stdout + result.stderr


def test_contracts_do_not_break_those_of_the_first_release(tmp_path: Path) -> None:
    release = first_release()
    if run("git", "cat-file", "-e", release).returncode:
        pytest.skip(f"this copy of the repository does not have the commit of 0.1.0, {release}")
    archive = tmp_path / "release.tar"
    exported = run("git", "archive", f"--output={archive}", release, "protos")
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
