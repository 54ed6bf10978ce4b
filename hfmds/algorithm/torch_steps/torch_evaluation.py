"""Evaluation of a model on labelled images, in torch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from numpy.typing import NDArray

from hfmds.algorithm.evaluation import evaluate_in_chunks
from hfmds.algorithm.local_work import LocalWork, Progress, no_progress
from hfmds.algorithm.models.building import images_on, model_on
from hfmds.domain.learning import Evaluation, LabelledImages, Weights
from hfmds.domain.recipe import ModelSpec, Normalisation
from hfmds.errors import InvalidInput


@torch.no_grad()
def evaluate(
    spec: ModelSpec,
    weights: Weights,
    normalisation: Normalisation,
    images: LabelledImages,
    *,
    what: str = "the held-out set",
    progress: Progress = no_progress,
    device: str = "cpu",
) -> Evaluation:
    """Measure accuracy and mean cross-entropy of a model; `what` names the images in errors."""
    images.require_fit(spec, what)
    if not len(images):
        raise InvalidInput(f"{what} is empty; there is nothing to evaluate on")
    model = model_on(device, spec, weights).eval()

    def step(normalised: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[float, int]:
        y = torch.from_numpy(labels).to(device)
        logits = model(images_on(device, normalised))
        loss = F.cross_entropy(logits, y, reduction="sum").item()
        return loss, int((logits.argmax(dim=1) == y).sum())

    return evaluate_in_chunks(step, images, normalisation, progress)


def evaluate_locally(
    work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
) -> Evaluation:
    """Measure how a task's model does on its device's own data."""
    return evaluate(
        work.recipe.model,
        work.weights,
        work.recipe.normalisation,
        work.shard,
        what="the device's shard",
        progress=progress,
        device=device,
    )
