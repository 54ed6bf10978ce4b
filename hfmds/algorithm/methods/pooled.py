"""Training on own data and on a pool of synthetic images: equation (6) of the HFMDS-FL paper.

alpha * loss(real) + (1 - alpha) * loss(synthetic)
"""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from hfmds.algorithm.sampling import Indices
from hfmds.algorithm.training import LocalTraining, Loss


def loss_with_pool(training: LocalTraining) -> Loss:
    """The loss over B real and, once there is a pool, B synthetic samples, in one forward."""
    model, pool = training.model, training.work.pool
    alpha = training.work.recipe.training.alpha

    def logits_of(images: Tensor, labels: Tensor, real: int) -> Tensor:
        z = model.features(images)
        if training.seen is not None:
            training.seen.add(z[:real].numpy(force=True), labels[:real].numpy(force=True))
        logits: Tensor = model.classifier(z)
        return logits

    def without_pool(rows: Indices) -> Tensor:  # alpha = 1 (Theorem 1)
        images, labels = training.batch(rows)
        return F.cross_entropy(logits_of(images, labels, len(rows)), labels)

    def with_pool(rows: Indices) -> Tensor:
        real = len(rows)
        synthetic = training.pool_rows(len(pool or ()), real)
        images, labels = training.batch(np.concatenate([rows, synthetic]))
        logits = logits_of(images, labels, real)
        on_real = F.cross_entropy(logits[:real], labels[:real])
        on_synthetic = F.cross_entropy(logits[real:], labels[real:])
        return alpha * on_real + (1 - alpha) * on_synthetic

    return with_pool if pool else without_pool
