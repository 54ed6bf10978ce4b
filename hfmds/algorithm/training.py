"""ClientUpdate of Algorithm 1: one device's local training in one round, in torch.

SGD on whatever loss the method gives (`hfmds.algorithm.methods`). Knows nothing of rounds, of other
devices, or of where the pool came from. Small batches on few threads are what devices train with,
so: channels_last, a batch in one gather, and SGD written out over all parameters at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hfmds.algorithm.engine import LocalWork, Progress
from hfmds.algorithm.models import SplitModel, model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.sampling import Indices, choose, epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.types import Weights
from hfmds.errors import InvalidInput

Loss: TypeAlias = Callable[[Indices], Tensor]
"""The loss of one step, from the rows of the shard that are its real batch."""


class LocalTraining:
    """One device's training under way: what a method's loss is made from."""

    def __init__(self, work: LocalWork, device: str = "cpu") -> None:
        self.work = work
        self.device = device
        self.model = self.network(work.weights)  # w_k, starting at w^t
        self.model.train()
        # The shard and, after it, the pool: normalised once, so that a batch is one gather.
        sets = [work.shard, work.pool] if work.pool else [work.shard]
        pixels = np.concatenate([s.pixels for s in sets])
        images = torch.from_numpy(normalise(pixels, work.recipe.normalisation))
        self._images = images.contiguous(memory_format=torch.channels_last).to(device)
        self._labels = torch.from_numpy(np.concatenate([s.labels for s in sets])).to(device)
        # Real and synthetic samples draw from streams of their own: with or without a pool the
        # real batches are the same, so runs with and without it compare sample by sample.
        self.real_order = generator(work.seed, "real")
        self._synthetic_order = generator(work.seed, "synthetic")

    def network(self, weights: Weights) -> SplitModel:
        """The recipe's network with these weights, where this training computes."""
        model = model_with(self.work.recipe.model, weights)
        return model.to(self.device).to(memory_format=torch.channels_last)

    def batch(self, rows: Indices) -> tuple[Tensor, Tensor]:
        """Images and labels of these rows; the pool's rows come behind the shard's."""
        chosen = torch.from_numpy(rows).to(self.device)
        return self._images[chosen], self._labels[chosen]

    def pool_rows(self, pool_size: int, count: int) -> Indices:
        """Rows of `count` samples of the pool, for one step."""
        return len(self.work.shard) + choose(pool_size, count, self._synthetic_order)


def minimise(training: LocalTraining, loss_of: Loss, progress: Progress | None = None) -> float:
    """Run all local epochs on the training's model; the mean loss over the last one."""
    settings = training.work.recipe.training
    samples = len(training.work.shard)
    parameters: list[Tensor] = list(training.model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]  # starts at zero each round

    steps_per_epoch = math.ceil(samples / settings.batch_size)
    steps = steps_per_epoch * settings.local_epochs
    step, epoch_loss = 0, 0.0
    for _ in range(settings.local_epochs):
        epoch_loss = 0.0
        for rows in epoch_batches(samples, settings.batch_size, training.real_order):
            loss = loss_of(rows)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                # v <- momentum v + gradient + decay w;  w <- w - eta v
                torch._foreach_mul_(velocity, settings.momentum)
                torch._foreach_add_(velocity, gradients)
                torch._foreach_add_(velocity, parameters, alpha=settings.weight_decay)
                torch._foreach_add_(parameters, velocity, alpha=-settings.learning_rate)

            step += 1
            epoch_loss += require_finite_loss(loss.item(), step, steps)
            if progress:
                progress(step, steps)
    return epoch_loss / steps_per_epoch


def require_finite_loss(
    loss: float, step: int, steps: int, rate: str = "training.learning_rate"
) -> float:
    """The loss, unless training has diverged; `rate` is the setting to lower then."""
    if not math.isfinite(loss):
        raise InvalidInput(
            f"training diverged: the loss is {loss} at step {step} of {steps}; "
            f"lower {rate}, or check the normalisation and the incoming weights"
        )
    return loss
