"""The loop over a fleet that only writes down what it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hfmds.algorithm.federation import federate
from hfmds.algorithm.sampling import Candidate, choose_cohort
from hfmds.domain.learning import (
    Checkpoint,
    DeviceEvaluation,
    Evaluation,
    LeakageSummary,
    Pool,
    Traffic,
    Update,
    Weights,
)
from hfmds.domain.recipe import Recipe
from hfmds.errors import Unavailable
from tests.algorithm.examples import HFMDS, RECIPE, assert_same

START = Checkpoint(0, {"w": np.zeros(1, np.float32)})
LEAKAGE = LeakageSummary(9, 9, 9, 10, 10, 10)


class WrittenFleet:
    """Each device adds its number to the weight; `absent` never deliver."""

    def __init__(
        self, devices: Sequence[str], absent: Sequence[str] = (), recipe: Recipe = RECIPE
    ) -> None:
        self.devices, self.absent, self.recipe = devices, absent, recipe
        self.calls: list[tuple[object, ...]] = []

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        self.calls.append(("synthesise", round_number, weights["w"].item()))
        return Pool(f"pool-{round_number}", 4, LEAKAGE, Traffic(100, 200))

    def train(self, round_number: int, weights: Weights, pool: Pool | None) -> Iterator[Update]:
        candidates = [Candidate(device, samples=1) for device in self.devices]
        cohort = choose_cohort(candidates, self.recipe, round_number)
        self.calls.append(("train", round_number, pool and pool.snapshot_id, cohort))
        for device in sorted(set(cohort) - set(self.absent)):
            value = weights["w"] + np.float32(device)
            yield Update(device, {"w": value}, 1, loss=float(device), traffic=Traffic(1, 2))

    def evaluate_on_devices(self, round_number: int, weights: Weights) -> DeviceEvaluation | None:
        return DeviceEvaluation(0.25, weights["w"].item(), samples=round_number, devices=2)

    def evaluate(self, round_number: int, weights: Weights) -> Evaluation | None:
        return Evaluation(accuracy=0.5, loss=weights["w"].item(), samples=1)


def test_each_round_refreshes_trains_aggregates_and_evaluates():
    fleet = WrittenFleet(["3", "1"])
    results = list(federate(fleet, HFMDS, START))  # 3 rounds, refresh at 1 and 3
    everyone = ("1", "3")
    assert fleet.calls == [
        ("synthesise", 1, 0.0),
        ("train", 1, "pool-1", everyone),
        ("train", 2, "pool-1", everyone),
        ("synthesise", 3, 4.0),
        ("train", 3, "pool-3", everyone),
    ]
    assert [r.checkpoint.round_number for r in results] == [1, 2, 3]
    assert [r.checkpoint.weights["w"].item() for r in results] == [2.0, 4.0, 6.0]
    assert [r.evaluation and r.evaluation.loss for r in results] == [2.0, 4.0, 6.0]
    by_devices = [DeviceEvaluation(0.25, 2.0 * t, t, 2) for t in (1, 2, 3)]
    assert [r.device_evaluation for r in results] == by_devices
    assert [r.refreshed for r in results] == [True, False, True]
    assert [r.training_loss for r in results] == [2.0, 2.0, 2.0]
    refreshing, plain = Traffic(102, 204), Traffic(2, 4)
    assert [r.traffic for r in results] == [refreshing, plain, refreshing]


def test_without_synthesis_it_is_fedavg():
    fleet = WrittenFleet(["1"])
    results = list(federate(fleet, RECIPE, START))
    assert [call[:3] for call in fleet.calls] == [("train", t, None) for t in (1, 2, 3)]
    assert all(r.checkpoint.pool is None and not r.refreshed for r in results)


def test_only_delivered_updates_count():
    result = next(federate(WrittenFleet(["1", "2", "6"], absent=["6"]), RECIPE, START))
    assert result.cohort == ("1", "2")
    assert result.checkpoint.weights["w"].item() == 1.5


def test_the_cohort_is_sampled_anew_each_round():
    recipe = replace(RECIPE, cohort_size=3, rounds=12)
    fleet = WrittenFleet(list("123456789"), recipe=recipe)
    cohorts = [r.cohort for r in federate(fleet, recipe, START)]
    assert {len(cohort) for cohort in cohorts} == {3}
    assert any(before != after for before, after in pairwise(cohorts))


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_run_ends_as_an_uninterrupted_one(stop_after: int):
    recipe: Recipe = replace(HFMDS, cohort_size=2)
    devices = list("12345")
    whole = list(federate(WrittenFleet(devices, recipe=recipe), recipe, START))
    resuming = WrittenFleet(devices, recipe=recipe)
    resumed = list(federate(resuming, recipe, whole[stop_after - 1].checkpoint))
    assert [r.checkpoint.round_number for r in resumed] == list(range(stop_after + 1, 4))
    assert [r.cohort for r in resumed] == [r.cohort for r in whole[stop_after:]]
    assert_same(resumed[-1].checkpoint.weights, whole[-1].checkpoint.weights)
    assert resumed[-1].checkpoint.pool == whole[-1].checkpoint.pool


def test_a_finished_run_has_nothing_left_to_do():
    fleet = WrittenFleet(["1"])
    assert list(federate(fleet, RECIPE, replace(START, round_number=3))) == []
    assert fleet.calls == []


def test_a_fleet_without_devices_is_named_as_the_problem():
    with pytest.raises(Unavailable, match="round 1: no device is available"):
        next(federate(WrittenFleet([]), RECIPE, START))
