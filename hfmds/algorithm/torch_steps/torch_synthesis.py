"""Steps of the synthesis in torch (`hfmds.algorithm.synthesis.SynthesisSteps`)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.models.building import images_on, model_on
from hfmds.algorithm.models.split_model import SplitModel
from hfmds.algorithm.synthesis import Floats, SynthesisLosses
from hfmds.algorithm.torch_steps.losses import (
    class_activation,
    hard_features,
    relevance,
    synthesis_terms,
)
from hfmds.algorithm.torch_steps.optimisers import Adam
from hfmds.domain.methods import Hfmds


class TorchSynthesis:
    """What the global model w^t computes in a synthesis."""

    def __init__(self, work: LocalWork, settings: Hfmds, device: str = "cpu") -> None:
        self._model = model_on(device, work.recipe.model, work.weights)
        self._model.eval().requires_grad_(False)
        self._settings = settings
        self._device = device

    @torch.no_grad()
    def features(self, images: Floats) -> tuple[Floats, Floats]:
        z = self._model.features(images_on(self._device, images))
        return z.numpy(force=True), self._model.classifier(z).numpy(force=True)

    def matching(
        self, features: Floats, prototypes: Floats, labels: NDArray[np.int64]
    ) -> TorchMatching:
        z, zbar, y = (
            torch.from_numpy(array).to(self._device) for array in (features, prototypes, labels)
        )
        z_hard = hard_features(z, zbar, self._settings.mu)
        return TorchMatching(self._model, self._settings, self._device, z_hard, y)


class TorchMatching:
    """L_HFMDS of one synthetic batch."""

    def __init__(
        self, model: SplitModel, settings: Hfmds, device: str, z_hard: Tensor, labels: Tensor
    ) -> None:
        self._model, self._settings, self._device = model, settings, device
        self._z_hard, self._labels = z_hard, labels
        self._cam = class_activation(model.classifier, z_hard, labels)
        self._target = relevance(z_hard, self._cam)

    @torch.no_grad()
    def hard_logits(self) -> Floats:
        logits: Tensor = self._model.classifier(self._z_hard)
        return logits.numpy(force=True)

    @torch.no_grad()
    def losses(self, images: Floats) -> SynthesisLosses:
        l_hfm, l_c, logits = self._terms(images_on(self._device, images))
        return SynthesisLosses(l_hfm.item(), l_c.item(), logits.numpy(force=True))

    def gradient_ratio(self, images: Floats) -> float:
        x = images_on(self._device, images).requires_grad_()
        l_hfm, l_c, _ = self._terms(x)
        (of_matching,) = torch.autograd.grad(l_hfm, x, retain_graph=True)
        (of_classification,) = torch.autograd.grad(l_c, x)
        # A model that sees nothing gives 0 / 0. That reads as 0, which is not sound, and not NaN.
        return float(of_matching.norm() / of_classification.norm().clamp(min=1e-12))

    def descent(self, noise: Floats) -> TorchDescent:
        return TorchDescent(self, images_on(self._device, noise), self._settings.learning_rate)

    def loss(self, x: Tensor) -> Tensor:
        """L_HFMDS, with L_HFM weighted as the recipe says."""
        l_hfm, l_c, _ = self._terms(x)
        return self._settings.matching_weight * l_hfm + l_c

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L_HFM, L_C, and the logits."""
        return synthesis_terms(self._model, x, self._labels, self._cam, self._target)


class TorchDescent:
    """Synthetic images under optimisation by Adam."""

    def __init__(self, matching: TorchMatching, x: Tensor, learning_rate: float) -> None:
        self._matching = matching
        self._x = x.requires_grad_()
        self._adam = Adam([self._x], learning_rate)

    def step(self) -> float:
        loss = self._matching.loss(self._x)
        self._adam.step(loss)
        return loss.item()

    def images(self) -> Floats:
        return self._x.numpy(force=True)
