from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from hfmds.algorithm.aggregation import mean_of
from hfmds.algorithm.types import Traffic, Update, Weights
from hfmds.errors import InvalidInput, Unavailable

LIKE = {"a": np.zeros(2, np.float32), "b": np.zeros((1, 1), np.float32)}
BOTH = ("a", "b")


def filled(value: float) -> Weights:
    return {name: np.full(array.shape, value, np.float32) for name, array in LIKE.items()}


def update(device_id: str, value: float = 0.0, samples: int = 1, **changes: np.ndarray) -> Update:
    return Update(
        device_id, {**filled(value), **changes}, samples, loss=value, traffic=Traffic(3, 5)
    )


def test_uniform_mean():
    result = mean_of([update("d1", 1, samples=9), update("d2", 2), update("d3", 6)], LIKE, BOTH)
    assert result.weights["a"].tolist() == [3, 3]
    assert result.weights["b"].tolist() == [[3]]
    assert result.weights["a"].dtype == np.float32
    assert result.devices == ("d1", "d2", "d3")
    assert result.loss == 3
    assert result.traffic == Traffic(9, 15)


def test_small_values_survive_next_to_large_ones():
    values = [1e8, *[1.0] * 8, -1e8]
    result = mean_of([update(f"d{i}", v) for i, v in enumerate(values)], LIKE, BOTH)
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


def test_weights_that_are_not_trained_stay_as_they_are():
    like = {**LIKE, "part/c": np.array([7, 8], np.float32)}
    result = mean_of([update("d1", 1), update("d2", 2)], like, BOTH)
    assert list(result.weights) == ["a", "b", "part/c"]
    assert result.weights["a"].tolist() == [1.5, 1.5]
    assert result.weights["part/c"].tolist() == [7, 8]


def test_an_update_with_weights_that_are_not_trained_is_refused():
    with pytest.raises(InvalidInput, match=r"device 'd1' is of another model.*unexpected \['b'\]"):
        mean_of([update("d1")], LIKE, ["a"])


def test_no_update_at_all_can_be_tried_again():
    with pytest.raises(Unavailable, match="no device delivered"):
        mean_of([], LIKE, BOTH)


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
        (update("d9", a=np.array([1, np.nan])), r"device 'd9' has a value in 'a' that is not"),
        (update("d9", a=np.array([1, np.inf])), r"device 'd9' has a value in 'a' that is not"),
    ],
    ids=["extra name", "missing name", "shape", "nan", "inf"],
)
def test_a_bad_update_is_refused_by_its_devices_name(bad: Update, message: str):
    with pytest.raises(InvalidInput, match=message):
        mean_of([update("d1"), bad], LIKE, BOTH)
