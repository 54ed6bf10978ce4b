"""Networks in torch, and their weights as numpy arrays by name.

A network for HFMDS-FL declares where its extractor ends and its classifier begins; nothing else
here depends on which network it is. To add one: subclass `SplitModel`, and enter it in
`ARCHITECTURES`. Knows no training and no synthesis.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from hfmds.algorithm.types import ModelSpec, Weights
from hfmds.errors import InvalidInput


class SplitModel(nn.Module, ABC):
    """A classifier f^d on top of a feature extractor f^e, with features that are not negative.

    Feature matching reads `features * relu(CAM)` as a distribution, hence the last clause.
    """

    classifier: nn.Module  # f^d(w^d; z) = q, the logits

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """z = f^e(w^e; x): [n, features], from normalised images [n, channels, height, width]."""

    def forward(self, images: Tensor) -> Tensor:
        """The logits q."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class PaperCNN(SplitModel):
    """The paper's network: two 5x5 convolutions, each pooled 2x2, then 1600 -> 512 -> classes.

    1600 is what is left of 3x32x32; other image sizes give another number there.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        height, width = _after_convolutions(spec.height), _after_convolutions(spec.width)
        if min(height, width) < 1:
            raise InvalidInput(
                f"paper-cnn needs images of at least 16x16, not {spec.height}x{spec.width}; "
                "scale the images up and set the recipe's model.height and model.width"
            )
        self.conv1 = nn.Conv2d(spec.channels, 32, kernel_size=5)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=5)
        self.hidden = nn.Linear(64 * height * width, 512)
        self.classifier = nn.Linear(512, spec.classes)

    def features(self, images: Tensor) -> Tensor:
        # relu(pool(x)) = pool(relu(x)), in value and gradient, with a quarter of the relu's work.
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.relu(self.hidden(x.flatten(1)))


def _after_convolutions(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


ARCHITECTURES: dict[str, Callable[[ModelSpec], SplitModel]] = {"paper-cnn": PaperCNN}

# A new module draws from torch's one generator per process. Without the lock a model built in
# another thread would take numbers out of the seed's stream, and w_0 would be anybody's.
_building = threading.RLock()


def build_model(spec: ModelSpec) -> SplitModel:
    """The network a spec names, with random weights."""
    if spec.architecture not in ARCHITECTURES:
        raise InvalidInput(
            f"model.architecture {spec.architecture!r} is not known; "
            f"choose one of: {', '.join(sorted(ARCHITECTURES))}"
        )
    with _building:
        return ARCHITECTURES[spec.architecture](spec)


def model_bytes(spec: ModelSpec) -> int:
    """The size of a model's weights, without making them."""
    with torch.device("meta"):
        return sum(4 * tensor.numel() for tensor in build_model(spec).state_dict().values())


def initial_weights(spec: ModelSpec, seed: int) -> Weights:
    """w_0, by torch's own initialisation; the process's random state is left as it was."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return weights_of(build_model(spec))


def model_with(spec: ModelSpec, weights: Weights) -> SplitModel:
    """The network a spec names, holding these weights."""
    model = build_model(spec)
    load_weights(model, weights)
    return model


def weights_of(model: nn.Module) -> Weights:
    """A copy of a model's parameters and buffers, as contiguous float32 arrays."""
    return {
        name: np.array(tensor.numpy(force=True), np.float32, order="C")
        for name, tensor in model.state_dict().items()
    }


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model, refusing any that are missing, unexpected or of another shape."""
    own = model.state_dict()
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if missing or unexpected:
        raise InvalidInput(
            f"these weights are of another model: missing {missing}, unexpected {unexpected}; "
            "check the recipe's model against where the weights come from"
        )
    for name, tensor in own.items():
        array = weights[name]
        if array.shape != tuple(tensor.shape):
            raise InvalidInput(
                f"weight {name!r} has shape {list(array.shape)}, the model {list(tensor.shape)}; "
                "check the recipe's channels, image size and classes"
            )
        tensor.copy_(torch.tensor(array))
