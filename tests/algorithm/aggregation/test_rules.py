"""The rules against formulas written another way, and against hostile updates."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hfmds.algorithm.aggregation import rules
from hfmds.algorithm.aggregation.aggregation import combine
from hfmds.domain.learning import Update, Weights
from hfmds.domain.recipe import RULES, AggregationRecipe
from hfmds.errors import Diverged, WrongState

SHAPES = {"a": (3, 5), "b": (), "c": (7,)}
ROBUST = {
    "median": AggregationRecipe(rule="median"),
    "trimmed mean": AggregationRecipe(rule="trimmed_mean", trimmed_fraction=0.2),
    "multi-krum": AggregationRecipe(rule="multi_krum", hostile_devices=2),
    "krum": AggregationRecipe(rule="multi_krum", hostile_devices=2, kept_devices=1),
    "clipped mean": AggregationRecipe(clip_norm=1.0),
}
robust = pytest.mark.parametrize("rule", ROBUST.values(), ids=ROBUST.keys())


def drawn(random: np.random.Generator, scale: float = 1.0) -> Weights:
    return {n: (scale * random.standard_normal(s)).astype(np.float32) for n, s in SHAPES.items()}


def updates_of(many: list[Weights]) -> list[Update]:
    return [Update(f"d{i:02}", weights, 1, float(i)) for i, weights in enumerate(many)]


def column(many: list[Weights], name: str, index: int) -> list[float]:
    return [float(weights[name].reshape(-1)[index]) for weights in many]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_domain_is_computed_and_keeps_equal_updates(rule: Any) -> None:
    like = drawn(np.random.default_rng(0))
    settings = AggregationRecipe(rule=rule)
    many = [like] * max(settings.least_devices, 3)
    result = combine(settings, like, updates_of(many), list(SHAPES))
    for name in SHAPES:
        np.testing.assert_allclose(result.weights[name], like[name], rtol=1e-6)


def test_a_rule_that_nobody_has_written_fails() -> None:
    settings = AggregationRecipe()
    object.__setattr__(settings, "rule", "seance")
    like = drawn(np.random.default_rng(0))
    with pytest.raises(AssertionError):
        combine(settings, like, updates_of([like]), list(SHAPES))


@pytest.mark.parametrize("devices", [1, 2, 5, 8])
def test_the_median_is_the_middle_of_each_value(devices: int) -> None:
    random = np.random.default_rng(devices)
    like, many = drawn(random), [drawn(random) for _ in range(devices)]
    result = combine(AggregationRecipe(rule="median"), like, updates_of(many), list(SHAPES))
    for name, combined in result.weights.items():
        for index, value in enumerate(combined.reshape(-1)):
            in_order = sorted(column(many, name, index))
            middle = (in_order[(devices - 1) // 2] + in_order[devices // 2]) / 2
            assert value == np.float32(middle)
    assert len(result.devices) == devices


@pytest.mark.parametrize(
    ("devices", "fraction", "ends"), [(10, 0.1, 1), (7, 0.3, 2), (100, 0.29, 29), (5, 0.49, 2)]
)
def test_the_trimmed_mean_leaves_out_as_many_at_each_end(
    devices: int, fraction: float, ends: int
) -> None:
    random = np.random.default_rng(devices)
    like, many = drawn(random), [drawn(random) for _ in range(devices)]
    settings = AggregationRecipe(rule="trimmed_mean", trimmed_fraction=fraction)
    result = combine(settings, like, updates_of(many), list(SHAPES))
    for name, combined in result.weights.items():
        for index, value in enumerate(combined.reshape(-1)):
            left = column(many, name, index)
            for _ in range(ends):
                left.remove(min(left))
                left.remove(max(left))
            assert value == pytest.approx(sum(left) / len(left), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    ("devices", "hostile", "kept"), [(3, 0, 0), (7, 2, 0), (9, 3, 2), (7, 2, 1)]
)
def test_multi_krum_keeps_those_with_the_nearest_neighbours(
    devices: int, hostile: int, kept: int
) -> None:
    random = np.random.default_rng(10 * devices + kept)
    like, many = drawn(random), [drawn(random) for _ in range(devices)]
    flat = [np.concatenate([w[n].astype(np.float64).reshape(-1) for n in SHAPES]) for w in many]
    scores = []
    for i in range(devices):
        others = [float(np.linalg.norm(flat[i] - flat[j])) ** 2 for j in range(devices) if j != i]
        # The least sum over any choice of so many neighbours.
        scores.append(min(map(sum, itertools.combinations(others, devices - hostile - 2))))
    by_score = sorted(range(devices), key=scores.__getitem__)
    expected = sorted(by_score[: kept or devices - hostile])

    settings = AggregationRecipe(rule="multi_krum", hostile_devices=hostile, kept_devices=kept)
    result = combine(settings, like, updates_of(many), list(SHAPES))
    assert result.devices == tuple(f"d{i:02}" for i in expected)
    assert result.loss == sum(expected) / len(expected)
    for name in SHAPES:
        mean = np.mean([many[i][name].astype(np.float64) for i in expected], axis=0)
        np.testing.assert_allclose(result.weights[name], mean, rtol=1e-6)


def test_distances_do_not_drown_in_what_all_weights_have_in_common() -> None:
    like = {"a": np.full(4, 1e4, np.float32)}
    changes = np.arange(3, dtype=np.float32)[:, None] * np.float32(2**-9)
    many = updates_of([{"a": like["a"] + change} for change in changes])
    expected = [[4 * (i - j) ** 2 * 2.0**-18 for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(rules.squared_distances(many, like, ["a"]), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (AggregationRecipe(rule="multi_krum", hostile_devices=2), 7),
        (AggregationRecipe(rule="multi_krum", hostile_devices=0), 3),
        (AggregationRecipe(rule="multi_krum", hostile_devices=1, kept_devices=5), 6),
        (AggregationRecipe(rule="trimmed_mean", trimmed_fraction=0.1), 10),
        (AggregationRecipe(rule="trimmed_mean", trimmed_fraction=0.3), 4),
    ],
)
def test_a_rule_that_could_not_keep_its_promise_refuses(
    settings: AggregationRecipe, needed: int
) -> None:
    random = np.random.default_rng(0)
    many = updates_of([drawn(random) for _ in range(needed)])
    combine(settings, drawn(random), many, list(SHAPES))
    with pytest.raises(WrongState, match=rf"{needed - 1} devices .* {needed};"):
        combine(settings, drawn(random), many[:-1], list(SHAPES))


# --- hostile updates ----------------------------------------------------------------------------

HONEST, HOSTILE = 8, 2
ATTACKS = {
    "scaled": lambda change: 1e4 * change,
    "sign flipped": lambda change: -100 * change,
    "all the same": lambda change: np.full_like(change, 50),
}
attacked = pytest.mark.parametrize("attack", ATTACKS)


def under_attack(attack: str) -> tuple[Weights, Weights, list[Update]]:
    """w^t, the honest devices' mean, and all updates: devices 3 and 6 are hostile."""
    random = np.random.default_rng(1)
    like, target = drawn(random), drawn(random, scale=0.2)
    honest = []
    for _ in range(HONEST + HOSTILE):
        noise = drawn(random, scale=0.02)
        honest.append({n: target[n] + noise[n] for n in SHAPES})
    changes = [
        {n: ATTACKS[attack](change[n]) for n in SHAPES} if i in (3, 6) else change
        for i, change in enumerate(honest)
    ]
    updates = updates_of([{n: like[n] + c[n] for n in SHAPES} for c in changes])
    mean = {
        n: np.mean([like[n] + c[n] for i, c in enumerate(honest) if i not in (3, 6)], axis=0)
        for n in SHAPES
    }
    return like, mean, updates


def distance(left: Weights, right: Weights) -> float:
    return float(np.sqrt(sum(np.square(left[n] - right[n]).sum() for n in SHAPES)))


@attacked
def test_two_hostile_devices_of_ten_break_the_mean(attack: str) -> None:
    like, honest, updates = under_attack(attack)
    result = combine(AggregationRecipe(), like, updates, list(SHAPES))
    assert distance(result.weights, honest) > 10 * distance(like, honest)


@attacked
@robust
def test_two_hostile_devices_of_ten_do_not_break_a_robust_rule(
    rule: AggregationRecipe, attack: str
) -> None:
    like, honest, updates = under_attack(attack)
    result = combine(rule, like, updates, list(SHAPES))
    # Nearer to what the honest devices learned than where they began. Clipping only limits what
    # each hostile device does: two of ten, by a change of the honest ones' length.
    assert distance(result.weights, honest) < 0.5 * distance(like, honest)
    if rule.rule == "multi_krum":
        assert not {"d03", "d06"} & set(result.devices)


@robust
def test_no_rule_takes_what_is_not_a_number(rule: AggregationRecipe) -> None:
    like, _, updates = under_attack("scaled")
    broken = {**updates[3].weights, "b": np.float32(np.nan)}
    updates[3] = replace(updates[3], weights=broken)
    with pytest.raises(Diverged, match="device 'd03' has a value"):
        combine(rule, like, updates, list(SHAPES))
