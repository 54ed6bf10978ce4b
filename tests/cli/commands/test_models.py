"""Commands that list models, save them and start runs from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.cli.main import main
from hfmds.domain.digest import digest_of
from hfmds.domain.runs import ModelVersion
from hfmds.wire.tensors import encode_weights
from tests.cli.fake_services import FakeCoordinator, serving
from tests.cli.values import a_round, a_run

Output = pytest.CaptureFixture[str]


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCoordinator]:
    """A coordinator with a run of three rounds: the first model is dropped, the second is best."""
    fake = FakeCoordinator()
    spec = a_run().spec
    fake.model = encode_weights(first_checkpoint(spec.recipe).weights)
    digest = digest_of(fake.model)
    fake.rounds = [
        replace(a_round(1), model_dropped=True),
        replace(a_round(2, 0.75), weights=digest),
        replace(a_round(3), weights=digest),
    ]
    fake.runs["run-1"] = a_run(completed_rounds=3, best_round=2)
    fake.runs["young"] = a_run("young")
    with serving(fake) as address:
        monkeypatch.setenv("HFMDS_COORDINATOR", address)
        yield fake


def test_list(coordinator: FakeCoordinator, capsys: Output) -> None:
    assert main(["model", "list", "run-1"]) == 0
    lines = (line.split() for line in capsys.readouterr().out.splitlines())
    first, second, third = (words for words in lines if words and words[0] in "123")
    size = f"{coordinator.rounds[1].weights.size_bytes / 1e3:.1f}"
    assert first[:6] == ["1", "50.0", "%", "-", "-", "dropped"]
    assert second[:7] == ["2", "75.0", "%", "-", size, "kB", "best"]
    assert third[:6] == ["3", "50.0", "%", "-", size, "kB"]
    assert main(["model", "list", "run-1", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)
    assert models["best_round"] == 2
    assert [model["model_dropped"] for model in models["models"]] == [True, False, False]


def test_export(coordinator: FakeCoordinator, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "model.safetensors"
    target.write_text("old")
    for which, number in ((), 3), (("--round", "last"), 3), (("--round", "best"), 2):
        assert main(["model", "export", "run-1", *which, "--output", str(target)]) == 0
        assert target.read_bytes() == coordinator.model
        assert f"after round {number}" in capsys.readouterr().out
    # The announced digest of round 3 does not match the bytes.
    coordinator.model += b"more"
    assert main(["model", "export", "run-1", "-o", str(target)]) == 1
    assert "try again" in capsys.readouterr().err
    assert target.read_bytes() + b"more" == coordinator.model
    assert main(["model", "export", "run-1", "-o", str(tmp_path / "no" / "where")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("run", "which", "code", "complaint"),
    [
        ("run-1", "9", 1, "its last completed round is 3"),
        ("run-1", "1", 1, "no longer kept; choose one of the rounds 2, 3"),
        ("run-1", "newest", 2, "'newest' is not a round; write a number, best or last"),
        ("young", "best", 1, "none was evaluated; name a round, or last"),
        ("young", "last", 1, "it has none yet"),
    ],
)
def test_a_missing_model_is_an_error(
    coordinator: FakeCoordinator, capsys: Output, run: str, which: str, code: int, complaint: str
) -> None:
    if run == "young":
        coordinator.rounds = []
    assert main(["model", "export", run, "--round", which]) == code
    assert complaint in capsys.readouterr().err


@pytest.mark.integration  # it loads torch and the exporter
def test_export_as_onnx(coordinator: FakeCoordinator, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "model.onnx"
    assert main(["model", "export", "run-1", "--format", "onnx", "-o", str(target)]) == 0
    assert "after round 3" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["origin"].startswith("run run-1, round 3, sha256")
    (logits,) = session.run(None, {"pixels": np.zeros((5, 1, 16, 16), np.float32)})
    assert logits.shape == (5, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("start", "number"), [("run-1", 3), ("run-1:last", 3), ("run-1:2", 2), ("run-1:best", 2)]
)
def test_a_run_is_created_from_a_model(
    coordinator: FakeCoordinator, start: str, number: int
) -> None:
    assert main(["run", "create", "--run-id", "next", "--from", start]) == 0
    assert coordinator.runs["next"].spec.start_from == ModelVersion("run-1", number)


def test_a_run_is_not_created_from_a_dropped_model(
    coordinator: FakeCoordinator, capsys: Output
) -> None:
    assert main(["run", "create", "--run-id", "next", "--from", "run-1:1"]) == 1
    assert "choose one of the rounds 2, 3" in capsys.readouterr().err
    assert "next" not in coordinator.runs
