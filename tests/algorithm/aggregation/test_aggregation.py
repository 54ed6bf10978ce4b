"""What holds for every way to aggregate; the rules themselves are in test_rules.py."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hfmds.algorithm.aggregation.aggregation import Aggregate, combine
from hfmds.algorithm.aggregation.blocks import threads_for
from hfmds.domain.learning import Traffic, Update, Weights
from hfmds.domain.recipe import AggregationRecipe
from hfmds.errors import Diverged, InvalidInput, Unavailable
from hfmds.wire.tensors import StoredWeights, encode_weights
from tests.algorithm.examples import assert_same

LIKE = {"a": np.zeros(2, np.float32), "b": np.zeros((1, 1), np.float32)}
BOTH = ("a", "b")


AS_THEY_COME = {"in a sequence": tuple, "one by one": iter}
either_way = pytest.mark.parametrize("given", AS_THEY_COME.values(), ids=AS_THEY_COME.keys())
Given = Callable[[Iterable[Update]], Iterable[Update]]
RULES = {
    "mean": AggregationRecipe(),
    "by samples": AggregationRecipe(weighting="samples"),
    "median": AggregationRecipe(rule="median"),
    "trimmed mean": AggregationRecipe(rule="trimmed_mean", trimmed_fraction=0.34),
    "multi-krum": AggregationRecipe(rule="multi_krum", hostile_devices=0),
    "clipped": AggregationRecipe(clip_norm=1e6),
    "with momentum": AggregationRecipe(optimiser="fedavgm"),
    "with adam": AggregationRecipe(optimiser="fedadam"),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def mean_of(updates: Iterable[Update], like: Weights, names: Iterable[str]) -> Aggregate:
    return combine(AggregationRecipe(), like, updates, list(names))


def filled(value: float) -> Weights:
    return {name: np.full(array.shape, value, np.float32) for name, array in LIKE.items()}


def update(device_id: str, value: float = 0.0, samples: int = 1, **changes: np.ndarray) -> Update:
    return Update(
        device_id, {**filled(value), **changes}, samples, loss=value, traffic=Traffic(3, 5)
    )


@either_way
def test_uniform_mean(given: Given):
    three = [update("d1", 1, samples=9), update("d2", 2), update("d3", 6)]
    result = mean_of(given(three), LIKE, BOTH)
    assert result.weights["a"].tolist() == [3, 3]
    assert result.weights["b"].tolist() == [[3]]
    assert result.weights["a"].dtype == np.float32
    assert result.devices == ("d1", "d2", "d3")
    assert result.loss == 3
    assert result.traffic == Traffic(9, 15)
    assert result.server_state == {}


@either_way
def test_mean_by_samples(given: Given):
    three = [update("d1", 1, samples=5), update("d2", 2, samples=2), update("d3", 6, samples=1)]
    result = combine(AggregationRecipe(weighting="samples"), LIKE, given(three), BOTH)
    assert result.weights["a"].tolist() == [1.875, 1.875]  # (5 * 1 + 2 * 2 + 1 * 6) / 8
    assert result.loss == 3  # uniform


def test_a_device_without_samples_has_no_weight_among_samples():
    with pytest.raises(InvalidInput, match="'d1'"):
        combine(AggregationRecipe(weighting="samples"), LIKE, [update("d1", samples=0)], BOTH)


@either_way
def test_small_values_survive_next_to_large_ones(given: Given):
    values = [1e8, *[1.0] * 8, -1e8]
    updates = given([update(f"d{i}", v) for i, v in enumerate(values)])
    result = mean_of(updates, LIKE, BOTH)
    assert result.weights["a"].tolist() == pytest.approx([0.8, 0.8])  # float32 sums would give 0


def test_one_update_is_in_memory_at_a_time():
    alive: list[weakref.ref[np.ndarray]] = []

    def stream() -> Iterator[Update]:
        for i in range(5):
            assert sum(ref() is not None for ref in alive) <= 1
            weights = filled(i)
            alive.append(weakref.ref(weights["a"]))
            yield Update(f"d{i}", weights, 1, 0.0)
            del weights

    assert mean_of(stream(), LIKE, BOTH).devices == ("d0", "d1", "d2", "d3", "d4")


@pytest.mark.parametrize("rule", ["mean", "by samples", "clipped to little"])
def test_a_mean_of_stored_updates_takes_as_much_memory_of_many_as_of_few(rule: str, tmp_path: Path):
    model = {"w": np.arange(1 << 21, dtype=np.float32)}  # 8 MiB
    of_model, of_update = tmp_path / "model", tmp_path / "update"
    of_model.write_bytes(encode_weights(model))
    of_update.write_bytes(encode_weights({"w": model["w"] + 1}))
    model_bytes = model["w"].nbytes
    settings = {**RULES, "clipped to little": AggregationRecipe(clip_norm=1.0)}[rule]

    def peak_bytes(devices: int) -> int:
        """As a coordinator combines them: each in a file, here all in the same."""
        like = StoredWeights(of_model, "the model")
        updates = [
            Update(f"d{i:02}", StoredWeights(of_update, f"update {i}"), 2, 0.0)
            for i in range(devices)
        ]
        tracemalloc.start()  # numpy tells it of its arrays
        try:
            combine(settings, like, updates, list(like))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    of_20, of_60 = peak_bytes(20), peak_bytes(60)
    # Threads are not always all at work at once. Each has a block of sums and what it adds to them.
    assert abs(of_60 - of_20) <= threads_for(1 << 30) * (2 * 8 << 17)
    assert model_bytes < min(of_20, of_60)  # the new model, at least
    assert max(of_20, of_60) < 3 * model_bytes


def test_weights_that_are_not_trained_stay_as_they_are():
    like = {**LIKE, "part/c": np.array([7, 8], np.float32)}
    result = mean_of([update("d1", 1), update("d2", 2)], like, BOTH)
    assert list(result.weights) == ["a", "b", "part/c"]
    assert result.weights["a"].tolist() == [1.5, 1.5]
    assert result.weights["part/c"].tolist() == [7, 8]


def test_an_update_with_weights_that_are_not_trained_is_refused():
    with pytest.raises(InvalidInput, match=r"'d1'.*\['b'\]"):
        mean_of([update("d1")], LIKE, ["a"])


@either_way
@every_rule
def test_no_update_at_all_can_be_tried_again(rule: AggregationRecipe, given: Given):
    with pytest.raises(Unavailable, match="no device delivered"):
        combine(rule, LIKE, given([]), BOTH)


@pytest.mark.parametrize("second", ["d1", "d0"])
def test_an_update_out_of_order_or_twice_is_refused(second: str):
    with pytest.raises(InvalidInput, match=rf"'{second}' comes after that of 'd1'"):
        mean_of([update("d1"), update(second)], LIKE, BOTH)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (update("d9", c=np.zeros(1)), r"device 'd9' is of another model.*unexpected \['c'\]"),
        (Update("d9", {"a": LIKE["a"]}, 1, 0.0), r"device 'd9'.*missing \['b'\]"),
        (update("d9", a=np.zeros(3)), r"device 'd9' has 'a' of shape \[3\], the model \[2\]"),
        (update("d9", a=np.array([1, np.nan])), r"device 'd9' has a value.* that is not a finite"),
        (update("d9", a=np.array([1, np.inf])), r"device 'd9' has a value.* that is not a finite"),
    ],
    ids=["extra name", "missing name", "shape", "nan", "inf"],
)
@either_way
@every_rule
def test_a_bad_update_is_refused_by_its_devices_name(
    bad: Update, message: str, rule: AggregationRecipe, given: Given
):
    with pytest.raises(InvalidInput, match=message):
        combine(rule, LIKE, given([update("d1"), update("d2"), bad]), BOTH)


def test_infinities_that_cancel_out_are_refused_too():
    both = [update("d1", a=np.array([1, np.inf])), update("d2", a=np.array([1, -np.inf]))]
    with pytest.raises(Diverged, match="device 'd1' has a value in 'a'"):
        mean_of(both, LIKE, BOTH)


@every_rule
def test_a_sequence_gives_the_bits_of_updates_that_come_one_by_one(rule: AggregationRecipe):
    # Tensors of several blocks, of one value, of none; more devices than rows of a small stack.
    random = np.random.default_rng(0)
    shapes = {"large": (3, 20_000), "one": (), "none": (0, 4), "edge": (1 << 15,)}

    def weights() -> Weights:
        return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}

    like = weights()
    updates = [Update(f"d{i:02}", weights(), i + 1, random.random()) for i in range(40)]
    whole = combine(rule, like, updates, list(shapes))
    streamed = combine(rule, like, iter(updates), list(shapes))
    assert_same(whole.weights, streamed.weights)
    assert_same(whole.server_state, streamed.server_state)
    assert (whole.devices, whole.loss) == (streamed.devices, streamed.loss)
    assert {n: array.shape for n, array in whole.weights.items()} == shapes


# --- clipping -----------------------------------------------------------------------------------


@either_way
def test_a_change_longer_than_the_limit_is_shortened_to_it(given: Given):
    like = {"a": np.array([1, 1], np.float32), "b": np.array([[2]], np.float32)}
    short = {"a": np.array([1, 1.5], np.float32), "b": np.array([[2]], np.float32)}  # by 0.5
    long = {"a": np.array([4, 1], np.float32), "b": np.array([[6]], np.float32)}  # by 5
    updates = given([Update("d1", short, 1, 0.0), Update("d2", long, 1, 0.0)])
    result = combine(AggregationRecipe(clip_norm=2.5), like, updates, BOTH)
    # The second one's change (3, 0, 4) counts as (1.5, 0, 2).
    assert result.weights["a"].tolist() == [1.75, 1.25]
    assert result.weights["b"].tolist() == [[3]]


def test_what_is_measured_is_neither_clipped_nor_counted_in_the_norm():
    like = {"a": np.zeros(2, np.float32), "count": np.zeros(1, np.float32)}
    sent = {"a": np.array([3, 4], np.float32), "count": np.array([1000], np.float32)}
    result = combine(
        AggregationRecipe(clip_norm=5.0),
        like,
        [Update("d1", sent, 1, 0.0)],
        ["a", "count"],
        measured=lambda name: name == "count",
    )
    assert_same(result.weights, sent)
    clipped = combine(
        AggregationRecipe(clip_norm=2.5),
        like,
        [Update("d1", sent, 1, 0.0)],
        ["a", "count"],
        measured=lambda name: name == "count",
    )
    assert clipped.weights["a"].tolist() == [1.5, 2]
    assert clipped.weights["count"].tolist() == [1000]
