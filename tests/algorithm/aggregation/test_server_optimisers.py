"""Server optimisers against loops written out, and what becomes of their state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hfmds.algorithm.aggregation.aggregation import combine
from hfmds.domain.learning import Update, Weights
from hfmds.domain.recipe import AggregationRecipe
from hfmds.errors import Diverged
from tests.algorithm.examples import assert_same

CHANGES = [0.5, -0.25, 0.125, 1.0]


def rounds(settings: AggregationRecipe, changes: list[float]) -> list[tuple[float, Weights]]:
    """One weight that all devices change by the same amount; where it is after each round."""
    weights: Weights = {"a": np.array([[2.0]], np.float32)}
    state: Weights = {}
    seen = []
    for change in changes:
        sent = {"a": weights["a"] + np.float32(change)}
        updates = [Update("d1", sent, 1, 0.0), Update("d2", sent, 1, 0.0)]
        result = combine(settings, weights, updates, ["a"], server_state=state)
        weights, state = result.weights, result.server_state
        seen.append((float(weights["a"][0, 0]), state))
    return seen


def test_fedavgm_rolls_on() -> None:
    settings = AggregationRecipe(optimiser="fedavgm", server_learning_rate=0.5, momentum=0.75)
    w, velocity = 2.0, 0.0
    for change, (weight, state) in zip(CHANGES, rounds(settings, CHANGES), strict=True):
        velocity = 0.75 * velocity + change
        w += 0.5 * velocity
        assert weight == pytest.approx(w, rel=1e-6)
        assert state["velocity/a"] == pytest.approx(velocity, rel=1e-5)


def test_fedadam_scales_by_what_it_has_seen() -> None:
    settings = AggregationRecipe(
        optimiser="fedadam", server_learning_rate=0.1, beta1=0.5, beta2=0.75, tau=0.01
    )
    w, m, v = 2.0, 0.0, 0.01**2
    for change, (weight, state) in zip(CHANGES, rounds(settings, CHANGES), strict=True):
        m = 0.5 * m + 0.5 * change
        v = 0.75 * v + 0.25 * change * change
        w += 0.1 * m / (math.sqrt(v) + 0.01)
        assert weight == pytest.approx(w, rel=1e-5)
        assert state["first_moment/a"] == pytest.approx(m, rel=1e-4)
        assert state["second_moment/a"] == pytest.approx(v, rel=1e-4)


def test_each_optimiser_has_a_rate_of_its_own() -> None:
    (plain, _), *_ = rounds(AggregationRecipe(optimiser="fedavgm"), [0.5])
    assert plain == 2.5  # the first round is that of the mean
    (adam, _), *_ = rounds(AggregationRecipe(optimiser="fedadam", beta1=0.0, beta2=0.0), [0.5])
    assert adam == pytest.approx(2 + 0.01 * 0.5 / (0.5 + 1e-3))


def test_what_is_measured_is_taken_as_combined_and_what_is_not_trained_is_remembered() -> None:
    settings = AggregationRecipe(optimiser="fedavgm")
    before = {n: np.zeros(2, np.float32) for n in ("a", "a.running_var", "gan/b")}
    sent = {"a": np.ones(2, np.float32), "a.running_var": np.full(2, 3, np.float32)}
    earlier = {"velocity/gan/b": np.full(2, 7, np.float32)}
    for _ in range(2):
        result = combine(
            settings,
            before,
            [Update("d1", sent, 1, 0.0)],
            ["a", "a.running_var"],
            measured=lambda name: name.endswith("running_var"),
            server_state=earlier,
        )
        earlier = dict(result.server_state)
    assert (result.weights["a"] == np.float32(1.9)).all()  # 0.9 * 1 + 1: momentum
    assert result.weights["a.running_var"].tolist() == [3, 3]
    assert result.weights["gan/b"].tolist() == [0, 0]
    assert earlier.keys() == {"velocity/a", "velocity/gan/b"}
    assert earlier["velocity/gan/b"].tolist() == [7, 7]


def test_a_step_out_of_the_finite_numbers_names_the_setting_to_lower() -> None:
    settings = AggregationRecipe(optimiser="fedavgm", server_learning_rate=1e39)
    with pytest.raises(Diverged, match=r"fedavgm left .* 'a'; lower aggregation.server_learning"):
        rounds(settings, [1.0])


def test_the_state_that_is_kept_is_all_that_counts() -> None:
    settings = AggregationRecipe(optimiser="fedadam")
    like = {"a": np.linspace(0, 1, 5, dtype=np.float32)}
    sent = [Update("d1", {"a": np.float32(1.1) * like["a"]}, 1, 0.0)]
    first = combine(settings, like, sent, ["a"])
    carried = {n: array.copy() for n, array in first.server_state.items()}
    kept = {n: array.copy() for n, array in first.weights.items()}
    assert all(array.dtype == np.float32 for array in carried.values())
    on = combine(settings, first.weights, sent, ["a"], server_state=first.server_state)
    again = combine(settings, first.weights, sent, ["a"], server_state=carried)
    assert_same(on.weights, again.weights)
    assert_same(on.server_state, again.server_state)
    # A step changes neither the state nor the weights it began at: a round may be replayed.
    assert_same(first.server_state, carried)
    assert_same(first.weights, kept)
