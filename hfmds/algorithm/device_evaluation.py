"""Evaluation of a new model by devices, each on its own data: who is asked, and what it adds up to.

The same code chooses and combines in simulation and over the network, so that both come to the
same numbers. Only three numbers leave a device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hfmds.algorithm.limits import require_at_least
from hfmds.algorithm.recipes import Recipe, Sampling
from hfmds.algorithm.sampling import Candidate, sample_cohort
from hfmds.algorithm.types import DeviceEvaluation, Evaluation


@dataclass(frozen=True, slots=True)
class EvaluationByDevices:
    """How many devices evaluate a new model, and how often."""

    devices: int = 0  # 0: none
    every_rounds: int = 1

    def __post_init__(self) -> None:
        require_at_least(0, evaluation__devices=self.devices)
        require_at_least(1, evaluation__every_rounds=self.every_rounds)

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether devices evaluate the model of this round; that of the last one they always do."""
        last = round_number == rounds
        return self.devices > 0 and (last or round_number % self.every_rounds == 0)

    def choose(
        self, candidates: Iterable[Candidate], recipe: Recipe, round_number: int
    ) -> tuple[str, ...]:
        """Who is asked: drawn evenly, however the cohort is, so that the numbers are of all."""
        return sample_cohort(
            candidates, self.devices, Sampling(), recipe.seed, round_number, "evaluation"
        )


def combine_evaluations(evaluations: Iterable[Evaluation]) -> DeviceEvaluation | None:
    """The mean over all devices' samples; None of none.

    The devices come in the order of their ids: a sum of floats depends on its order.
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
