"""Content from peers: weights, updates, synthetic batches and plans."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load, save

from hfmds.algorithm.aggregation.compression import packed_form, unpacked
from hfmds.errors import HfmdsError, InvalidInput
from hfmds.plans.format import encode_plan, read_plan
from hfmds.wire.tensors import (
    StoredTensors,
    StoredWeights,
    encode_batch,
    encode_weights,
    read_batch,
    require_finite_weights,
)
from tests.fuzz.budget import tried
from tests.fuzz.safetensors_files import almost
from tests.plans.examples import plan
from tests.wire.examples import RECIPE
from tests.wire.test_tensors import BATCH, FORMS, MIXTURES, WEIGHTS

_MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "content"


@contextmanager
def little_memory(path: Path) -> Iterator[None]:
    """Require that the block uses at most a few times the memory of the file."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * path.stat().st_size + _MEGABYTE


@tried(100)
@given(content=almost(encode_weights(WEIGHTS)))
def test_fuzzed_weights_are_decoded_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with little_memory(path), suppress(HfmdsError):
        weights = StoredWeights(path, "the weights")
        require_finite_weights(weights, "the weights")
        assert sum(weights[name].nbytes for name in weights) <= len(content)
        weights.require_form(FORMS, "the weights")
        assert {name: weights[name].shape for name in weights} == weights.shapes()


@tried(60)
@given(data=st.data())
def test_fuzzed_compressed_updates_are_decoded_or_refused(path: Path, data: st.DataObject) -> None:
    base = {"w": np.zeros((32, 16), np.float32), "b": np.zeros(4, np.float32)}
    update = {
        "w": np.ones((32, 16), np.int8),
        "scale/w": np.array(0.5, np.float32),
        "b": np.ones(4, np.float32),
    }
    path.write_bytes(data.draw(almost(save(update))))
    with little_memory(path), suppress(HfmdsError):
        packed = StoredTensors(path, "the update")
        shapes = {name: array.shape for name, array in base.items()}
        packed.require_form(packed_form(RECIPE, shapes), "the update")
        weights = unpacked(RECIPE, packed, base)
        assert {name: weights[name].shape for name in weights} == shapes


@tried(100)
@given(content=almost(encode_batch(BATCH)) | almost(encode_batch(MIXTURES)))
def test_fuzzed_batches_are_decoded_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with little_memory(path), suppress(HfmdsError):
        batch = read_batch(path, "the batch")
        assert read_again(path, encode_batch(batch)) == encode_batch(batch)


@pytest.mark.parametrize("pixel", [2.0, float("nan")])
def test_a_large_batch_of_wrong_pixels_is_refused_in_little_memory(
    path: Path, pixel: float
) -> None:
    images = np.full((100, 3, 64, 64), pixel, np.float16)
    measured = {name: np.zeros(100, np.float32) for name in BATCH.measurements}
    path.write_bytes(save({"images": images, "labels": np.zeros(100, np.int64), **measured}))
    with (
        little_memory(path),
        pytest.raises(InvalidInput, match="others: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more"),
    ):
        read_batch(path, "the batch")


def read_again(path: Path, content: bytes) -> bytes:
    path.write_bytes(content)
    return encode_batch(read_batch(path, "the batch"))


@tried(60)
@given(content=almost(encode_plan(plan())))
def test_fuzzed_plans_are_decoded_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with little_memory(path), suppress(HfmdsError):
        read_plan(path, "the plan")


def _places(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in inner:
        yield from _places(value, (*place, key))


_STRANGE = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    float("nan"),
    "",
    "x",
    [],
    [None],
    {},
    {"x": 1},
    "n",
    "9" * 5000,
)


def test_an_endlessly_nested_manifest_is_refused(path: Path) -> None:
    path.write_bytes(save({}, {"plan": "[" * 100_000}))
    with pytest.raises(InvalidInput, match="RecursionError"):
        read_plan(path, "the plan")


@tried(100)
@given(data=st.data())
def test_fuzzed_plan_manifests_are_decoded_or_refused(path: Path, data: st.DataObject) -> None:
    path.write_bytes(encode_plan(plan()))
    manifest = json.loads(safe_open(path, framework="np").metadata()["plan"])
    tensors = load(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from([p for p in _places(manifest) if p]))
        node = manifest
        for key in way:
            node = node[key]
        node[last] = deepcopy(data.draw(st.sampled_from(_STRANGE)))
    path.write_bytes(save(tensors, {"plan": json.dumps(manifest)}))
    with suppress(HfmdsError):
        read = read_plan(path, "the plan")
        for graph in read.graphs.values():
            assert graph.memory_bytes(10) >= 0
            for spec in (*graph.inputs, *graph.outputs):
                assert all(size >= 0 for size in spec.shape_for(10))
