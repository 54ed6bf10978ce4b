"""Steps of local training in torch: SGD on the loss of a method (`hfmds.algorithm.methods`).

Devices train with small batches on few threads. So networks and images are in channels_last, and
only samples that are drawn are normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.models.building import model_on, weights_of
from hfmds.algorithm.models.split_model import SplitModel
from hfmds.algorithm.sampling import Indices
from hfmds.algorithm.torch_steps.optimisers import sgd_step
from hfmds.algorithm.training import sample_weights
from hfmds.domain.learning import LabelledImages, Weights


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step: real ones and, for methods that use alpha, synthetic ones."""

    images: Tensor  # normalised
    labels: Tensor
    sample_weights: Tensor  # of each sample in the loss; they hold alpha
    pool_rows: Indices | None = (
        None  # rows that torch drew, even if the batch has no images of them
    )


class BatchLoss(NamedTuple):
    """The loss of one batch, and the features z it was computed from, if there are any."""

    value: Tensor
    features: Tensor | None = None


Loss: TypeAlias = Callable[[Batch], BatchLoss]


class LocalModel:
    """The model in training, as a loss sees it."""

    def __init__(self, model: SplitModel, read_anchor: Callable[[], Sequence[Tensor]]) -> None:
        self.features = model.features  # z of images
        self.classifier = model.classifier  # logits of z
        self.parameters: Sequence[Tensor] = list(model.parameters())  # w_k
        self._read_anchor = read_anchor

    @cached_property
    def anchor(self) -> Sequence[Tensor]:
        """w^t, in the order of the parameters. A loss that does not read it does not load it."""
        return self._read_anchor()


class TorchTraining:
    """One device's network and data in torch."""

    def __init__(self, work: LocalWork, device: str = "cpu") -> None:
        self.work = work
        self.device = device
        self.model = self.network(work.weights)  # w_k, starting at w^t
        self.model.train()
        self.local = LocalModel(self.model, self._anchor)
        self._mean, self._std = (
            torch.tensor(values, dtype=torch.float32, device=device).reshape(-1, 1, 1)
            for values in (work.recipe.normalisation.mean, work.recipe.normalisation.std)
        )
        # Pixels stay as they came. A pool may be large, and training draws little of it.
        self._shard = self._tensors(work.shard)
        self._pool = self._tensors(work.pool) if work.pool else None

    def _anchor(self) -> Sequence[Tensor]:
        return [w.detach() for w in self.network(self.work.weights).parameters()]

    def network(self, weights: Weights) -> SplitModel:
        """Build the recipe's network with these weights, on the device that computes."""
        return model_on(self.device, self.work.recipe.model, weights)

    def batch(self, rows: Indices, pool_rows: Indices | None = None) -> Batch:
        """Load the samples of one step."""
        levels, labels = self._rows(self._shard, rows)
        if pool_rows is not None and self._pool and self.work.recipe.method.uses_alpha:
            pool_levels, pool_labels = self._rows(self._pool, pool_rows)
            levels, labels = torch.cat([levels, pool_levels]), torch.cat([labels, pool_labels])
        weights = sample_weights(len(rows), len(labels) - len(rows), self.work.training.alpha)
        sample_weight = torch.from_numpy(weights).to(self.device)
        return Batch(self._normalised(levels), labels, sample_weight, pool_rows)

    def pool_images(self, pool_rows: Indices) -> Tensor:
        """Load images of the pool alone."""
        assert self._pool is not None
        return self._normalised(self._rows(self._pool, pool_rows)[0])

    def _tensors(self, images: LabelledImages) -> tuple[Tensor, Tensor]:
        pixels, labels = torch.from_numpy(images.pixels), torch.from_numpy(images.labels)
        return pixels.to(self.device), labels.to(self.device)

    def _rows(self, images: tuple[Tensor, Tensor], rows: Indices) -> tuple[Tensor, Tensor]:
        """Return grey levels and labels of these rows."""
        chosen = torch.from_numpy(rows).to(self.device)
        pixels = images[0].index_select(0, chosen)
        # Half-precision pixels run from 0 to 1.
        levels = pixels.to(torch.float32) * 255 if pixels.dtype == torch.float16 else pixels
        return levels, images[1][chosen]

    def _normalised(self, levels: Tensor) -> Tensor:
        """Normalise as `pixels.normalise` does, to the bit."""
        images = levels.to(torch.float32).div_(255).sub_(self._mean).div_(self._std)
        return images.contiguous(memory_format=torch.channels_last)


class SgdSteps:
    """Steps of SGD down a method's loss (`hfmds.algorithm.training.TrainingSteps`)."""

    def __init__(self, training: TorchTraining, loss: Loss) -> None:
        self._training = training
        self._loss = loss
        self._parameters: list[Tensor] = list(training.model.parameters())
        # The paper leaves the optimiser's state open: momentum starts at zero each round.
        self._velocity = [torch.zeros_like(p) for p in self._parameters]

    def step(
        self, rows: Indices, pool_rows: Indices | None
    ) -> tuple[float, NDArray[np.float32] | None]:
        loss, features = self._loss(self._training.batch(rows, pool_rows))
        gradients = torch.autograd.grad(loss, self._parameters)
        sgd_step(self._parameters, gradients, self._velocity, self._training.work.training)
        z = None if features is None else features.float().numpy(force=True)
        return loss.item(), z

    def weights(self) -> Weights:
        return weights_of(self._training.model)
