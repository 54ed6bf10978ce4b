from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hfmds.algorithm.evaluation import choose_evaluators, combine_evaluations
from hfmds.algorithm.federation import federate
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.sampling import Candidate
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.algorithm.torch_steps.torch_evaluation import evaluate
from hfmds.domain.learning import DeviceEvaluation, Evaluation
from hfmds.domain.round_policy import EvaluationByDevices
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE, images

CANDIDATES = [Candidate(device_id, samples) for samples, device_id in enumerate("abcdefgh", 1)]


def test_evaluations_are_combined_by_samples():
    found = combine_evaluations([Evaluation(0.5, 1.0, 30), Evaluation(1.0, 2.0, 10)])
    assert found == DeviceEvaluation(0.625, 1.25, 40, 2)
    assert combine_evaluations([]) is None
    diverged = combine_evaluations([Evaluation(0.5, math.nan, 1), Evaluation(0.0, 1.0, 1)])
    assert diverged is not None
    assert (diverged.accuracy, math.isnan(diverged.loss)) == (0.25, True)


def test_some_rounds_are_due_and_always_the_last():
    every_third = EvaluationByDevices(devices=2, every_rounds=3)
    assert [t for t in range(1, 9) if every_third.due(t, rounds=8)] == [3, 6, 8]
    assert not any(EvaluationByDevices().due(t, rounds=8) for t in range(1, 9))


def test_who_is_asked_depends_on_seed_and_round_alone():
    plan = EvaluationByDevices(devices=3)
    chosen = [choose_evaluators(plan, CANDIDATES, RECIPE, t) for t in range(1, 9)]
    assert chosen == [choose_evaluators(plan, CANDIDATES[::-1], RECIPE, t) for t in range(1, 9)]
    assert {len(set(devices)) for devices in chosen} == {3}
    assert len(set(chosen)) > 1
    other = replace(RECIPE, seed=RECIPE.seed + 1)
    assert chosen != [choose_evaluators(plan, CANDIDATES, other, t) for t in range(1, 9)]


@pytest.mark.parametrize(("devices", "every"), [(-1, 1), (1, 0)])
def test_settings_out_of_range_are_refused(devices: int, every: int):
    with pytest.raises(InvalidInput, match=r"evaluation\.(devices|every_rounds) is"):
        EvaluationByDevices(devices, every)


def test_simulated_devices_evaluate_the_new_model_on_their_own_data():
    shards = {device: images(4 + i, seed=i) for i, device in enumerate("abc")}
    plan = EvaluationByDevices(devices=2)
    recipe = replace(RECIPE, rounds=1)
    (result,) = federate(
        LocalFleet(recipe, shards, evaluation=plan), recipe, first_checkpoint(recipe)
    )
    asked = choose_evaluators(plan, [Candidate(d, len(shards[d])) for d in shards], recipe, 1)
    weights = result.checkpoint.weights
    expected = combine_evaluations(
        evaluate(recipe.model, weights, recipe.normalisation, shards[d]) for d in asked
    )
    assert result.device_evaluation == expected
    assert expected is not None
    assert expected.samples == sum(len(shards[device]) for device in asked)
