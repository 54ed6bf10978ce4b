"""Evaluation of a model on labelled images, by the coordinator or by devices. Only numpy.

The loop exists once. A step computes the loss: `torch_steps.torch_evaluation`, or a graph of a
plan on devices without torch. When devices evaluate, each one uses its own data, and only three
numbers leave it. Simulated and real fleets choose and combine them with the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.local_work import Progress, no_progress
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.sampling import Candidate, sample_cohort
from hfmds.domain.learning import DeviceEvaluation, Evaluation, LabelledImages
from hfmds.domain.recipe import Normalisation, Recipe, Sampling
from hfmds.domain.round_policy import EvaluationByDevices

CHUNK = 256  # images at a time, to bound memory

EvaluationStep: TypeAlias = Callable[[NDArray[np.float32], NDArray[np.int64]], tuple[float, int]]
"""From normalised images and labels to the sum of their losses and the number of right answers."""


def evaluate_in_chunks(
    step: EvaluationStep,
    images: LabelledImages,
    normalisation: Normalisation,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measure accuracy and mean cross-entropy over all images."""
    loss, correct = 0.0, 0
    for start in range(0, len(images), CHUNK):
        pixels = normalise(images.pixels[start : start + CHUNK], normalisation)
        chunk_loss, chunk_correct = step(pixels, images.labels[start : start + CHUNK])
        loss += chunk_loss
        correct += chunk_correct
        progress(min(start + CHUNK, len(images)), len(images))
    return Evaluation(correct / len(images), loss / len(images), len(images))


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
