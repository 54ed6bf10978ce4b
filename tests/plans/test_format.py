from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from hfmds.errors import InvalidInput
from hfmds.plans import format as plan_format
from hfmds.plans.format import BATCH, TensorSpec, encode_plan, read_plan
from tests.plans.examples import plan


def written(folder: Path, data: bytes) -> Path:
    path = folder / "plan"
    path.write_bytes(data)
    return path


def with_manifest(folder: Path, **changes: Any) -> Path:
    """The example's file, its manifest changed."""
    path = written(folder, encode_plan(plan()))
    manifest = json.loads(safe_open(path, framework="np").metadata()["plan"])
    manifest.update(changes)
    return written(folder, save(load(path.read_bytes()), {"plan": json.dumps(manifest)}))


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path, encode_plan(plan())), "the plan") == plan()


def test_equal_plans_have_equal_bytes() -> None:
    turned = dataclasses.replace(plan(), graphs=dict(reversed(plan().graphs.items())))
    assert encode_plan(turned) == encode_plan(plan())


def test_shape_and_memory_are_for_a_batch() -> None:
    assert TensorSpec("x", "float32", (BATCH, 3)).shape_for(4) == (4, 3)
    assert plan().graph("evaluate").memory_bytes(10) == 170


def test_a_missing_graph_is_named() -> None:
    with pytest.raises(InvalidInput, match="'train'"):
        plan().graph("train")


@pytest.mark.parametrize(
    ("version", "remedy"), [(2, "update this device"), (0, "update the coordinator")]
)
def test_another_format_is_refused(tmp_path: Path, version: int, remedy: str) -> None:
    with pytest.raises(InvalidInput, match=f"the plan is of format {version}.*{remedy}"):
        read_plan(with_manifest(tmp_path, format=version), "the plan")


def test_operators_that_the_runtime_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"99.*18"):
        read_plan(with_manifest(tmp_path, opset=99), "the plan")
    assert read_plan(with_manifest(tmp_path, opset=19), "the plan", max_opset=23).opset == 19


def test_a_graph_of_a_later_version_is_left_aside(tmp_path: Path) -> None:
    path = written(tmp_path, encode_plan(plan()))
    graphs = json.loads(safe_open(path, framework="np").metadata()["plan"])["graphs"]
    later = with_manifest(tmp_path, graphs={**graphs, "dream": graphs["evaluate"]})
    assert read_plan(later, "the plan") == plan()


def test_altered_graphs_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, encode_plan(plan()))
    metadata = safe_open(path, framework="np").metadata()
    altered = {**load(path.read_bytes()), "evaluate": np.frombuffer(b"eno", np.uint8)}
    with pytest.raises(InvalidInput, match="'evaluate'"):
        read_plan(written(tmp_path, save(altered, metadata)), "the plan")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no plan at all",
        save({"train": np.zeros(3, np.uint8)}),
        save({"train": np.zeros(3, np.uint8)}, {"plan": "[]"}),
        save({}, {"plan": '{"format": 1, "opset": "x"}'}),
    ],
)
def test_what_is_not_a_plan_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidInput, match="the plan is not a plan"):
        read_plan(written(tmp_path, data), "the plan")


def test_an_impossible_tensor_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'x'.*float16"):
        TensorSpec("x", "float16", ())
    with pytest.raises(InvalidInput, match="'x'"):
        TensorSpec("x", "int64", ("m",))


def test_a_plan_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_format, "MAX_PLAN_BYTES", 10)
    with pytest.raises(InvalidInput, match="10"):
        read_plan(written(tmp_path, encode_plan(plan())), "the plan")
