"""ClientUpdate of Algorithm 1: one device's local training in one round. Only numpy.

The loop is here, once. What computes a step is behind `TrainingSteps`: torch
(`torch_steps.torch_training`), or the graphs of a plan on devices without torch. All random draws
are here, so every engine sees the same batches in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.finite_checks import require_finite_loss
from hfmds.algorithm.local_work import LocalWork, Memory, Progress, TrainedModel, no_progress
from hfmds.algorithm.prototypes import ClassMeans, prototypes_after_training
from hfmds.algorithm.sampling import Indices, choose, epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.domain.learning import Weights
from hfmds.domain.methods import Hfmds


class TrainingSteps(Protocol):
    """SGD on the loss of one method. Holds w_k, which starts at w^t, and its momentum."""

    def step(
        self, rows: Indices, pool_rows: Indices | None
    ) -> tuple[float, NDArray[np.float32] | None]:
        """Take one step on these rows of the shard and of the pool.

        Returns the loss before the step and the features z of the batch, real images first. Losses
        that compute no features give None.
        """

    def weights(self) -> Weights:
        """Return w_k as it is now."""


def train(work: LocalWork, steps: TrainingSteps, progress: Progress = no_progress) -> TrainedModel:
    """Run all local epochs of a device's round."""
    settings, method, pool = work.training, work.recipe.method, work.pool
    # Real and synthetic samples draw from streams of their own. So a run with a pool has the same
    # real batches as a run without, and the two compare sample by sample.
    real_order, synthetic_order = generator(work.seed, "real"), generator(work.seed, "synthetic")
    prototype_settings = method if isinstance(method, Hfmds) and method.local_prototypes else None
    means = ClassMeans()  # z_c of the real samples

    def step(rows: Indices) -> float:
        pool_rows = choose(len(pool), len(rows), synthetic_order) if pool else None
        loss, features = steps.step(rows, pool_rows)
        if prototype_settings and features is not None:
            means.add(features[: len(rows)], work.shard.labels[rows])
        return loss

    loss = run_epochs(
        step,
        len(work.shard),
        settings.batch_size,
        settings.local_epochs,
        real_order,
        progress,
        "training.learning_rate",
    )
    memory: Memory = {}
    if prototype_settings:
        memory = prototypes_after_training(work.memory, means, prototype_settings)
    return TrainedModel(steps.weights(), len(work.shard), loss, memory)


def run_epochs(
    step: Callable[[Indices], float],
    samples: int,
    batch_size: int,
    epochs: int,
    order: np.random.Generator,
    progress: Progress,
    rate_setting: str,
) -> float:
    """Take a step on every batch of every epoch; return the mean loss over the last epoch.

    Raises Diverged if a loss is not finite; the error names `rate_setting` as the one to lower.
    """
    steps_per_epoch = math.ceil(samples / batch_size)
    steps = steps_per_epoch * epochs
    done, epoch_loss = 0, 0.0
    for _ in range(epochs):
        epoch_loss = 0.0
        for rows in epoch_batches(samples, batch_size, order):
            loss = step(rows)
            done += 1
            epoch_loss += require_finite_loss(loss, done, steps, rate_setting)
            progress(done, steps)
    return epoch_loss / steps_per_epoch


def sample_weights(real: int, synthetic: int, alpha: float) -> NDArray[np.float32]:
    """Weights of a batch's samples in its loss, real samples first.

    With them, a sum over the batch is equation (6):
    alpha * mean loss(real) + (1 - alpha) * mean loss(synthetic).
    Without synthetic samples alpha counts as 1 (Theorem 1).
    """
    if not synthetic:
        return np.full(real, 1 / real, np.float32)
    shares = [np.full(real, alpha / real), np.full(synthetic, (1 - alpha) / synthetic)]
    return np.concatenate(shares).astype(np.float32)
