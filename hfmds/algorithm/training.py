"""ClientUpdate of Algorithm 1: one device's local training in one round, in torch.

SGD on whatever loss the method gives (`hfmds.algorithm.methods`). Knows nothing of rounds, of other
devices, or of where the pool came from. Small batches on few threads are what devices train with,
so: channels_last, no work on samples that are not drawn, and SGD in one pass over the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hfmds.algorithm.finite_checks import require_finite_loss
from hfmds.algorithm.local_work import LocalWork, Progress
from hfmds.algorithm.models.building import SplitModel, quick_model
from hfmds.algorithm.prototypes import ClassMeans
from hfmds.algorithm.sampling import Indices, choose, epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.domain.learning import Weights
from hfmds.domain.recipe import TrainingRecipe

Loss: TypeAlias = Callable[[Indices], Tensor]
"""The loss of one step, from the rows of the shard that are its real batch."""


class LocalTraining:
    """One device's training under way: what a method's loss is made from."""

    def __init__(self, work: LocalWork, device: str = "cpu") -> None:
        self.work = work
        self.device = device
        self.model = self.network(work.weights)  # w_k, starting at w^t
        self.model.train()
        # As they came: only what a batch takes is normalised, for a pool may be large and little of
        # it drawn.
        sets = [work.shard, work.pool] if work.pool else [work.shard]
        self._pixels = [torch.from_numpy(s.pixels).to(device) for s in sets]
        self._labels = torch.from_numpy(np.concatenate([s.labels for s in sets])).to(device)
        self._mean, self._std = (
            torch.tensor(values, dtype=torch.float32, device=device).reshape(-1, 1, 1)
            for values in (work.recipe.normalisation.mean, work.recipe.normalisation.std)
        )
        # Real and synthetic samples draw from streams of their own: with or without a pool the
        # real batches are the same, so runs with and without it compare sample by sample.
        self.real_order = generator(work.seed, "real")
        self.seen: ClassMeans | None = None  # of the real samples, where the method wants them
        self._synthetic_order = generator(work.seed, "synthetic")

    def network(self, weights: Weights) -> SplitModel:
        """The recipe's network with these weights, where this training computes."""
        return quick_model(self.work.recipe.model, weights, self.device)

    def batch(self, rows: Indices) -> tuple[Tensor, Tensor]:
        """Images and labels of these rows: the shard's, then the pool's, which count on from it."""
        own = int((rows < len(self.work.shard)).sum())
        chosen = torch.from_numpy(rows).to(self.device)
        parts = [self._pixels[0].index_select(0, chosen[:own])]
        if own < len(rows):
            of_pool = self._pixels[-1].index_select(0, chosen[own:] - len(self.work.shard))
            is_float = of_pool.dtype == torch.float16  # from 0 to 1
            parts.append(of_pool.to(torch.float32).mul_(255) if is_float else of_pool)
        # As `pixels.normalise` does it, to the bit; and in its layout, which for few channels takes
        # a third of the time.
        images = torch.cat(parts).to(torch.float32).div_(255).sub_(self._mean).div_(self._std)
        images = images.contiguous(memory_format=torch.channels_last)
        return images, self._labels[chosen]

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
            sgd_step(parameters, torch.autograd.grad(loss, parameters), velocity, settings)
            step += 1
            epoch_loss += require_finite_loss(loss.item(), step, steps)
            if progress:
                progress(step, steps)
    return epoch_loss / steps_per_epoch


@torch.no_grad()
def sgd_step(
    parameters: list[Tensor],
    gradients: Sequence[Tensor],
    velocity: list[Tensor],
    settings: TrainingRecipe,
) -> None:
    """v <- momentum v + gradient + decay w;  w <- w - eta v, for all parameters in one pass.

    The kernel of torch.optim.SGD(fused=True), called directly: torch.optim loads torch's compiler
    when first used, 2 s and 150 MB that each device would pay.
    """
    torch._fused_sgd_(
        parameters,
        # It walks memory in order: a gradient of another layout would silently go wrong.
        [
            g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
            for p, g in zip(parameters, gradients, strict=True)
        ],
        velocity,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
