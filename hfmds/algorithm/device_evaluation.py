"""Evaluation of a new model by devices, each on its own data.

Simulated and real fleets choose the devices and combine their results with this code, so both get
the same numbers. Only three numbers leave a device.
"""

from __future__ import annotations

from collections.abc import Iterable

from hfmds.algorithm.sampling import Candidate, sample_cohort
from hfmds.domain.learning import DeviceEvaluation, Evaluation
from hfmds.domain.recipe import Recipe, Sampling
from hfmds.domain.round_policy import EvaluationByDevices


def choose_evaluators(
    policy: EvaluationByDevices, candidates: Iterable[Candidate], recipe: Recipe, round_number: int
) -> tuple[str, ...]:
    """Draw the devices that evaluate this round's model.

    The draw is uniform, however the cohort was drawn, so that the result represents all devices.
    """
    return sample_cohort(
        candidates, policy.devices, Sampling(), recipe.seed, round_number, "evaluation"
    )


def combine_evaluations(evaluations: Iterable[Evaluation]) -> DeviceEvaluation | None:
    """Average over the samples of all devices; None if there are none.

    Pass the devices in the order of their ids: a sum of floats depends on its order.
    """
    correct, loss, samples, devices = 0.0, 0.0, 0, 0
    for evaluation in evaluations:
        correct += evaluation.accuracy * evaluation.samples
        loss += evaluation.loss * evaluation.samples
        samples += evaluation.samples
        devices += 1
    if not samples:
        return None
    return DeviceEvaluation(correct / samples, loss / samples, samples, devices)
