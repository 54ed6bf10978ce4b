"""`hfmds experiment` without running trials."""

from pathlib import Path

import pytest

from hfmds.cli.main import main
from tests.experiments.tiny import write_experiment

Output = pytest.CaptureFixture[str]


def complaint(capsys: Output, *arguments: str) -> str:
    assert main(["experiment", *arguments]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_list_names_the_experiments(capsys: Output) -> None:
    assert main(["experiment", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("table2" in line and "Table 2" in line for line in lines)
    assert any("extreme" in line for line in lines)


def test_wrong_configurations_are_refused_before_anything_runs(
    capsys: Output, tmp_path: Path
) -> None:
    config, out = str(write_experiment(tmp_path)), ["--out", str(tmp_path / "out")]
    assert "did you mean table2" in complaint(capsys, "run", "tabel2")
    assert "no size 'smal'" in complaint(capsys, "run", config, "--size", "smal")
    assert "no arm 'FedAv'; did you mean FedAvg" in complaint(
        capsys, "run", config, "--only", "FedAv"
    )
    for seeds in ("one", "", "0,0", "-1"):
        assert "whole numbers with commas" in complaint(capsys, "run", config, "--seeds", seeds)
    assert "neither known nor a folder" in complaint(
        capsys, "run", config, "--data", "nowhere", *out
    )
    assert "hfmds data fetch cifar10" in complaint(
        capsys, "run", config, "--data", "cifar10", "--data-root", str(tmp_path), *out
    )
    assert "the compute device is 'gpu'; it must be one of cpu, cuda" in complaint(
        capsys, "run", config, "--compute-device", "gpu", *out
    )
    assert not (tmp_path / "out").exists()


def test_an_out_folder_that_cannot_be_made_is_named(capsys: Output, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = str(write_experiment(tmp_path))
    output = complaint(capsys, "run", config, "--out", str(tmp_path / "file"))
    assert "choose another --out" in output


def test_a_report_needs_results(capsys: Output, tmp_path: Path) -> None:
    assert main(["experiment", "report", "table2", "--out", str(tmp_path)]) == 1
    assert "run the experiment first" in " ".join(capsys.readouterr().err.split())
