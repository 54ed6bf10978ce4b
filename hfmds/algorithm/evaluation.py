"""How a model does on labelled images, in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from hfmds.algorithm.local_work import LocalWork, Progress
from hfmds.algorithm.models.building import quick_model
from hfmds.algorithm.pixels import normalise
from hfmds.domain.learning import Evaluation, LabelledImages, Weights
from hfmds.domain.recipe import ModelSpec, Normalisation
from hfmds.errors import InvalidInput

_CHUNK = 256  # images at a time, to bound memory


@torch.no_grad()
def evaluate(
    spec: ModelSpec,
    weights: Weights,
    normalisation: Normalisation,
    images: LabelledImages,
    *,
    what: str = "the held-out set",
    progress: Progress = lambda done, steps: None,
    device: str = "cpu",
) -> Evaluation:
    """Accuracy and mean cross-entropy of a model over labelled images; `what` names them."""
    images.require_fit(spec, what)
    if not len(images):
        raise InvalidInput(f"{what} is empty; there is nothing to evaluate on")
    model = quick_model(spec, weights, device).eval()
    loss, correct = 0.0, 0
    for start in range(0, len(images), _CHUNK):
        pixels = images.pixels[start : start + _CHUNK]
        labels = torch.from_numpy(images.labels[start : start + _CHUNK]).to(device)
        batch = torch.from_numpy(normalise(pixels, normalisation)).to(device)
        logits = model(batch.contiguous(memory_format=torch.channels_last))
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(dim=1) == labels).sum())
        progress(min(start + _CHUNK, len(images)), len(images))
    return Evaluation(correct / len(images), loss / len(images), len(images))


def evaluate_locally(
    work: LocalWork, progress: Progress = lambda done, steps: None, device: str = "cpu"
) -> Evaluation:
    """How a task's model does on its device's own data."""
    return evaluate(
        work.recipe.model,
        work.weights,
        work.recipe.normalisation,
        work.shard,
        what="the device's shard",
        progress=progress,
        device=device,
    )
