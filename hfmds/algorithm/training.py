"""ClientUpdate of Algorithm 1: one device's local training in one round, in torch.

Knows nothing of rounds, of other devices, or of where the pool came from. Small batches on few
threads are what devices train with, so: channels_last, one forward over both halves of a batch,
and SGD written out over all parameters at once.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from hfmds.algorithm.engine import Progress, TrainedModel
from hfmds.algorithm.models import model_with, weights_of
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.sampling import choose, epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.types import LabelledImages, Recipe, Weights
from hfmds.errors import InvalidInput


def train(
    recipe: Recipe,
    weights: Weights,
    shard: LabelledImages,
    pool: LabelledImages | None,
    seed: int,
    progress: Progress | None = None,
    device: str = "cpu",
) -> TrainedModel:
    """Train from the global weights on the shard and, once there is one, on the pool.

    `device` is torch's: the same numbers come out on the same device only.
    """
    settings = recipe.training
    shard.require_fit(recipe.model, "the device's shard")
    if not len(shard):
        raise InvalidInput("the device's shard is empty; a device needs data to take part")
    if pool is not None:
        pool.require_fit(recipe.model, "the synthetic pool")
    alpha = settings.alpha if pool else 1.0  # without synthetic data alpha = 1 (Theorem 1)

    # Real and synthetic samples draw from streams of their own: with or without a pool the real
    # batches are the same, so runs with and without it compare sample by sample.
    real_order = generator(seed, "real")
    synthetic_order = generator(seed, "synthetic")

    model = model_with(recipe.model, weights).to(device).to(memory_format=torch.channels_last)
    model.train()
    images, labels = (tensor.to(device) for tensor in _as_tensors(recipe, shard, pool))
    parameters: list[Tensor] = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]  # starts at zero each round

    steps_per_epoch = math.ceil(len(shard) / settings.batch_size)
    steps = steps_per_epoch * settings.local_epochs
    step = 0
    for _ in range(settings.local_epochs):
        epoch_loss = 0.0
        for batch in epoch_batches(len(shard), settings.batch_size, real_order):
            real = len(batch)
            if pool:
                synthetic = len(shard) + choose(len(pool), real, synthetic_order)
                batch = np.concatenate([batch, synthetic])
            rows = torch.from_numpy(batch).to(device)

            logits, targets = model(images[rows]), labels[rows]
            loss = alpha * F.cross_entropy(logits[:real], targets[:real])
            if pool:
                loss = loss + (1 - alpha) * F.cross_entropy(logits[real:], targets[real:])

            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                # v <- momentum v + gradient + decay w;  w <- w - eta v
                torch._foreach_mul_(velocity, settings.momentum)
                torch._foreach_add_(velocity, gradients)
                torch._foreach_add_(velocity, parameters, alpha=settings.weight_decay)
                torch._foreach_add_(parameters, velocity, alpha=-settings.learning_rate)

            step += 1
            epoch_loss += _finite(loss.item(), step, steps)
            if progress:
                progress(step, steps)
    return TrainedModel(weights_of(model), len(shard), epoch_loss / steps_per_epoch)


def _as_tensors(
    recipe: Recipe, shard: LabelledImages, pool: LabelledImages | None
) -> tuple[Tensor, Tensor]:
    """The shard and, after it, the pool: normalised once, so that a batch is one gather."""
    sets = [shard, pool] if pool else [shard]
    pixels = np.concatenate([s.pixels for s in sets])
    images = torch.from_numpy(normalise(pixels, recipe.normalisation))
    labels = torch.from_numpy(np.concatenate([s.labels for s in sets]))
    return images.contiguous(memory_format=torch.channels_last), labels


def _finite(loss: float, step: int, steps: int) -> float:
    if not math.isfinite(loss):
        raise InvalidInput(
            f"training diverged: the loss is {loss} at step {step} of {steps}; "
            "lower training.learning_rate, or check the normalisation and the incoming weights"
        )
    return loss
