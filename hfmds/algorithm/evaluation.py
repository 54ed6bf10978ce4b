"""How a model does on labelled images. Only numpy.

The loop is here, once. What computes the loss is a step: torch (`torch_steps.torch_evaluation`), or
a graph of a plan on devices without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.local_work import Progress, no_progress
from hfmds.algorithm.pixels import normalise
from hfmds.domain.learning import Evaluation, LabelledImages
from hfmds.domain.recipe import Normalisation

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
