"""`hfmds demo` from start to end, at its smallest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SMALL = (
    "--devices=3",
    "--rounds=3",
    "--images-per-device=10",
    "--local-epochs=1",
    "--synthesis-steps=2",
    "--synthetic-images=4",
)


def test_the_demo_runs_to_its_end_and_leaves_a_report(tmp_path: Path) -> None:
    hfmds = Path(sys.executable).with_name("hfmds")
    done = subprocess.run(
        [hfmds, "demo", *SMALL, f"--report={tmp_path / 'report'}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    for label in ("FedAvg", "FedAvg, lr/10", "HFMDS-FL"):
        assert f"{label}" in done.stdout
    assert "points" in done.stdout or "level with" in done.stdout  # the verdict
    files = {path.name for path in (tmp_path / "report").iterdir()}
    assert files == {"accuracy.png", "pool.png", "psnr.png", "report.json"}
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [len(run["rounds"]) for run in report["runs"]] == [3, 3, 3]
