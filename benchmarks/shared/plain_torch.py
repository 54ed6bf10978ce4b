"""The steps of a device in plain torch, for benchmarks/devices/edge_engines.py.

Channels first, `loss.backward()`, and optimisers of torch.optim. With `compiled` the network goes
through torch.compile, which needs a C++ compiler.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.models.building import SplitModel, model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.torch_steps.losses import class_activation, matching_loss, relevance
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import Hfmds


class PlainTorch:
    """Trains and synthesises as an engine does, without results."""

    def __init__(self, threads: int, *, compiled: bool) -> None:
        torch.set_num_threads(threads)
        self._compiled = compiled
        self._kept: dict[str, tuple[SplitModel, Callable[..., torch.Tensor]]] = {}

    def train(self, work: LocalWork, progress: object = None) -> None:
        """Train with a pool."""
        assert work.pool is not None
        settings, batch = work.recipe.training, work.recipe.training.batch_size
        model, forward = self._model(work, "train")
        model.train()
        optimiser = torch.optim.SGD(
            model.parameters(),
            settings.learning_rate,
            settings.momentum,
            weight_decay=settings.weight_decay,
        )
        (real, labels), (made, made_labels) = _tensors(work, work.shard), _tensors(work, work.pool)
        order = torch.randperm(len(real))
        for start in range(0, len(real), batch):
            own = order[start : start + batch]
            other = torch.randint(len(made), (len(own),))
            logits = forward(torch.cat([real[own], made[other]]))
            of_own = F.cross_entropy(logits[: len(own)], labels[own])
            of_other = F.cross_entropy(logits[len(own) :], made_labels[other])
            loss = settings.alpha * of_own + (1 - settings.alpha) * of_other
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()

    def synthesise(self, work: LocalWork, progress: object = None) -> None:
        """Match features, starting from noise."""
        settings = work.recipe.method
        assert isinstance(settings, Hfmds)
        model, forward = self._model(work, "synthesise")
        model.eval().requires_grad_(False)
        images, labels = _tensors(work, work.shard)
        z = model.features(images)
        cam = class_activation(model.classifier, z, labels)
        target = relevance(z, cam)
        x = torch.randn_like(images).requires_grad_()
        optimiser = torch.optim.Adam([x], settings.learning_rate)
        for _ in range(settings.steps):
            features = forward(x)
            of_class = F.cross_entropy(model.classifier(features), labels)
            loss = matching_loss(features, cam, target) + of_class
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()

    def _model(self, work: LocalWork, kind: str) -> tuple[SplitModel, Callable[..., torch.Tensor]]:
        """Build the network, compiled once if wanted, outside the measurement."""
        key = f"{kind} {work.recipe.training.batch_size}"
        if key not in self._kept:
            model = model_with(work.recipe.model, work.weights)
            forward = model if kind == "train" else model.features
            self._kept[key] = model, torch.compile(forward) if self._compiled else forward
        return self._kept[key]


def _tensors(work: LocalWork, images: LabelledImages) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = normalise(images.pixels, work.recipe.normalisation)
    return torch.from_numpy(pixels), torch.from_numpy(images.labels)
