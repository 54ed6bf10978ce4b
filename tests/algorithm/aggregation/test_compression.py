"""Compressed updates: what is sent, what it stands for, and what is left for later."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from hfmds.algorithm.aggregation.aggregation import combine
from hfmds.algorithm.aggregation.blocks import Block, read_block
from hfmds.algorithm.aggregation.compression import (
    TensorForm,
    UnpackedWeights,
    pack,
    packed_form,
    split_memory,
    unpacked,
)
from hfmds.algorithm.federation import federate
from hfmds.algorithm.local_work import TrainedModel
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.domain.learning import Update, Weights
from hfmds.domain.methods import LABEL_COUNTS, FedGen
from hfmds.domain.recipe import AggregationRecipe, Recipe
from hfmds.errors import Diverged
from tests.algorithm.examples import EVERY_METHOD, RECIPE, assert_same, images, recipe_for

FP16, INT8 = (replace(RECIPE, compression=name) for name in ("fp16", "int8"))
SHARDS = {"b": images(6, seed=1), "a": images(9, seed=2), "c": images(5, seed=3)}


def before(seed: int = 0) -> Weights:
    random = np.random.default_rng(seed)
    return {
        "large": random.standard_normal((20, 30)).astype(np.float32),
        "small": random.standard_normal(255).astype(np.float32),
        "norm.running_var": random.random(300).astype(np.float32),
    }


def changed(weights: Weights, change: float) -> TrainedModel:
    random = np.random.default_rng(1)
    trained = {
        n: w + np.float32(change) * random.standard_normal(w.shape).astype(np.float32)
        for n, w in weights.items()
    }
    return TrainedModel(trained, 5, 0.5)


def test_what_is_sent_has_the_form_that_is_expected() -> None:
    weights = before()
    shapes = {n: w.shape for n, w in weights.items()}
    expected = {"none": ("<f4", 4), "fp16": ("<f2", 2), "int8": ("i1", 1)}
    for compression, (dtype, value_bytes) in expected.items():
        recipe = replace(RECIPE, compression=compression)
        forms = packed_form(recipe, shapes)
        assert forms["large"] == TensorForm(np.dtype(dtype), (20, 30))
        assert forms["large"].size_bytes == 600 * value_bytes
        # Of few values, or measured and not learned.
        assert forms["small"] == TensorForm(np.dtype("<f4"), (255,))
        assert forms["norm.running_var"].dtype == np.float32
        assert ("scale/large" in forms) == (compression == "int8")
        packed, _ = pack(recipe, weights, changed(weights, 0.01), {})
        assert {n: TensorForm(a.dtype, a.shape) for n, a in packed.items()} == forms


def test_class_counts_are_sent_as_they_are() -> None:
    many = replace(INT8, method=FedGen())
    forms = packed_form(many, {LABEL_COUNTS: (1000,), "classifier.weight": (1000, 4)})
    assert forms[LABEL_COUNTS].dtype == np.float32
    assert forms["classifier.weight"].dtype == np.int8


def test_nothing_is_changed_where_nothing_is_compressed() -> None:
    weights = before()
    trained = replace(changed(weights, 0.01), memory={"kept": np.ones(3, np.float32)})
    packed, memory = pack(RECIPE, weights, trained, {})
    received = unpacked(RECIPE, packed, weights)
    assert_same(received, trained.weights)
    assert memory is trained.memory


def test_int8_rounds_to_the_nearest_of_127_steps_and_keeps_the_rest() -> None:
    weights = {"w": np.zeros(256, np.float32)}
    change = np.zeros(256, np.float32)
    change[:6] = [127, -127, 1.25, -0.75, 0.5, 126.75]
    packed, memory = pack(INT8, weights, TrainedModel({"w": change}, 1, 0.0), {})
    assert packed["w"].dtype == np.int8
    assert packed["scale/w"] == np.float32(1)
    assert packed["w"][:6].tolist() == [127, -127, 1, -1, 0, 127]
    assert memory["residual/w"][:6].tolist() == [0, 0, 0.25, 0.25, 0.5, -0.25]

    # Next time the rest is sent, too: 0.25 + 1 and 0.5 + 1.
    again = np.zeros(256, np.float32)
    again[[0, 2, 4]] = [127, 1, 1]
    packed, memory = pack(INT8, weights, TrainedModel({"w": again}, 1, 0.0), memory)
    assert packed["w"][:6].tolist() == [127, 0, 1, 0, 2, 0]
    assert memory["residual/w"][:6].tolist() == [0, 0, 0.25, 0.25, -0.5, -0.25]


def test_a_tensor_that_did_not_change_is_sent_as_zeros() -> None:
    weights = before()
    packed, memory = pack(INT8, weights, TrainedModel(weights, 1, 0.0), {})
    assert packed["scale/large"] == 0
    assert not packed["large"].any()
    assert not memory["residual/large"].any()
    assert_same(unpacked(INT8, packed, weights), weights)


@pytest.mark.parametrize(("recipe", "steps"), [(FP16, 2**11), (INT8, 127)])
def test_what_is_received_is_near_what_was_trained(recipe: Recipe, steps: int) -> None:
    weights = before()
    trained = changed(weights, 0.01)
    packed, _ = pack(recipe, weights, trained, {})
    received = unpacked(recipe, packed, weights)
    assert received.keys() == weights.keys()
    change = trained.weights["large"] - weights["large"]
    error = np.abs(received["large"] - trained.weights["large"])
    largest = np.abs(change).max()
    assert 0 < error.max() <= largest / steps / 2 + 2e-7  # and what float32 loses
    for exact in ("small", "norm.running_var"):
        np.testing.assert_array_equal(received[exact], trained.weights[exact])


def test_what_is_received_can_be_read_in_blocks() -> None:
    weights = before()
    for recipe in (FP16, INT8):
        packed, _ = pack(recipe, weights, changed(weights, 0.01), {})
        received = unpacked(recipe, packed, weights)
        assert isinstance(received, UnpackedWeights)
        out = np.empty(7, np.float32)
        read_block(received, Block("large", 31, 38), out)
        np.testing.assert_array_equal(out, received["large"].reshape(-1)[31:38])
        assert received.shape("large") == (20, 30)
        assert "scale/large" not in received
        with pytest.raises(KeyError):
            received["scale/large"]


def test_over_rounds_error_feedback_loses_nothing() -> None:
    # A change, the same in each round, of which most values are far below half a step of int8.
    random = np.random.default_rng(0)
    change = (0.001 * random.standard_normal(1000)).astype(np.float32)
    change[0] = 1.0
    weights = {"w": np.zeros(1000, np.float32)}
    trained = TrainedModel({"w": change}, 1, 0.0)
    residual: Weights = {}
    sums, without = np.zeros(1000), np.zeros(1000)
    rounds = 200
    for _ in range(rounds):
        packed, memory = pack(INT8, weights, trained, residual)
        residual = split_memory(memory)[1]
        sums += unpacked(INT8, packed, weights)["w"]
        without += unpacked(INT8, pack(INT8, weights, trained, {})[0], weights)["w"]
    assert np.abs(without / rounds - change).max() > 1e-3  # they never arrive
    step = 1.01 / 127
    assert np.abs(sums / rounds - change).max() < step / rounds


@pytest.mark.parametrize("recipe", [FP16, INT8])
@pytest.mark.parametrize("value", [1e6, np.inf, np.nan])
def test_a_change_that_cannot_be_sent_is_refused_on_the_device(
    recipe: Recipe, value: float
) -> None:
    weights = before()
    broken = {**weights, "large": np.full((20, 30), value, np.float32)}
    trained = TrainedModel(broken, 1, 0.0)
    if recipe is INT8 and value == 1e6:
        pack(recipe, weights, trained, {})  # its scale has room
        return
    with pytest.raises(Diverged, match=r"'large'.*training.learning_rate"):
        pack(recipe, weights, trained, {})


def test_what_is_left_is_kept_apart_from_what_the_method_remembers() -> None:
    weights = before()
    own = {"large": np.ones(3, np.float32)}
    _, memory = pack(INT8, weights, replace(changed(weights, 0.01), memory=own), {})
    assert memory.keys() == {"large", "residual/large"}
    kept, residual = split_memory(memory)
    assert_same(kept, own)
    assert residual.keys() == {"residual/large"}
    assert split_memory(own) == (own, {})


# --- in a fleet ---------------------------------------------------------------------------------


@pytest.mark.matrix(one_in=3)
@pytest.mark.parametrize("name", sorted(EVERY_METHOD))
@pytest.mark.parametrize(
    ("compression", "aggregation"),
    [
        ("int8", AggregationRecipe(optimiser="fedavgm")),
        ("fp16", AggregationRecipe(rule="median", optimiser="fedadam", clip_norm=0.5)),
    ],
)
def test_a_run_carried_over_to_another_process_goes_on_to_the_bit(
    name: str, compression: str, aggregation: AggregationRecipe
) -> None:
    recipe = replace(
        recipe_for(name),
        rounds=4,
        cohort_size=2,
        compression=compression,
        aggregation=aggregation,
    )
    start = first_checkpoint(recipe)
    whole = list(federate(LocalFleet(recipe, SHARDS), recipe, start))

    first = LocalFleet(recipe, SHARDS)
    *_, half = islice(federate(first, recipe, start), 2)
    point = half.checkpoint
    saved = {n: array.copy() for n, array in first.state(point.pool).items()}
    second = LocalFleet(recipe, SHARDS)
    second.restore(saved)
    rest = list(federate(second, recipe, point))
    for one, other in zip(rest, whole[2:], strict=True):
        assert_same(one.checkpoint.weights, other.checkpoint.weights)
        assert_same(one.checkpoint.server_state, other.checkpoint.server_state)
    residuals = {n for n in saved if "/residual/" in n}
    assert bool(residuals) == (compression == "int8")


def test_compressed_updates_are_combined_by_every_rule() -> None:
    weights = before()
    sent = [pack(INT8, weights, changed(weights, 0.01 * i), {})[0] for i in range(1, 4)]
    updates = [Update(f"d{i}", unpacked(INT8, one, weights), 1, 0.0) for i, one in enumerate(sent)]
    plain = [replace(u, weights={n: u.weights[n] for n in u.weights}) for u in updates]
    for rule in (
        AggregationRecipe(),
        AggregationRecipe(clip_norm=0.1),
        AggregationRecipe(rule="median"),
        AggregationRecipe(rule="multi_krum", hostile_devices=0),
    ):
        one, other = (combine(rule, weights, u, list(weights)) for u in (updates, plain))
        assert_same(one.weights, other.weights)
