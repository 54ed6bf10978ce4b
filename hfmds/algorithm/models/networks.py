"""The networks of HFMDS-FL itself, in torch. No other module depends on which one a run uses.

How a recipe names a network, and how users add their own, is in `architectures`.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from hfmds.algorithm.models.split_model import SplitModel
from hfmds.domain.recipe import PAPER_CNN, RESNET_GN, ModelSpec
from hfmds.errors import InvalidInput


class PaperCNN(SplitModel):
    """The paper's network: two 5x5 convolutions, each pooled 2x2, then 1600 -> 512 -> classes.

    1600 follows from images of 3x32x32. Other sizes give another number.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        _require_size(PAPER_CNN, spec, least=16)
        height, width = _after_convolutions(spec.height), _after_convolutions(spec.width)
        self.conv1 = nn.Conv2d(spec.channels, 32, kernel_size=5)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=5)
        self.hidden = nn.Linear(64 * height * width, 512)
        self.classifier = nn.Linear(512, spec.classes)

    def features(self, images: Tensor) -> Tensor:
        # relu(pool(x)) = pool(relu(x)) in value and gradient, for a quarter of the ReLU's work.
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.relu(self.hidden(x.flatten(1)))


def _after_convolutions(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


class ResNetGN(SplitModel):
    """A residual network of eight layers with group normalisation: 128 features, 0.3 M weights.

    The norm is GroupNorm and not BatchNorm. Batch statistics are those of a device's classes, and
    their average over devices with unlike data fits none of them. The weights do not depend on the
    image size.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        _require_size(RESNET_GN, spec, least=8)
        self.stem = nn.Sequential(_convolution(spec.channels, 16), _normalisation(16), nn.ReLU())
        # Every block halves the image. With a first block at full size, of 32 channels, training
        # took three times as long and was no better on 2,000 images of CIFAR-10 (8 epochs, one
        # seed: 38 % against 41 %).
        self.blocks = nn.Sequential(*(_ResidualBlock(width) for width in (16, 32, 64)))
        self.classifier = nn.Linear(128, spec.classes)

    def features(self, images: Tensor) -> Tensor:
        # The last block ends in a ReLU, so the mean over positions is never negative.
        x: Tensor = self.blocks(self.stem(images))
        return x.mean(dim=(2, 3))


class _ResidualBlock(nn.Module):
    """relu(shortcut(x) + branch(x)): half the height and width, twice the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(width, 2 * width, stride=2),
            _normalisation(2 * width),
            nn.ReLU(),
            _convolution(2 * width, 2 * width),
            _normalisation(2 * width),
        )
        self.shortcut = nn.Sequential(
            _convolution(width, 2 * width, kernel_size=1, stride=2), _normalisation(2 * width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.branch(x))


def _convolution(width_in: int, width: int, kernel_size: int = 3, stride: int = 1) -> nn.Conv2d:
    # No bias: the norm that follows has one.
    return nn.Conv2d(width_in, width, kernel_size, stride, padding=kernel_size // 2, bias=False)


def _normalisation(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(num_groups=8, num_channels=width)


def _require_size(architecture: str, spec: ModelSpec, least: int) -> None:
    if min(spec.height, spec.width) < least:
        raise InvalidInput(
            f"{architecture} needs images of at least {least}x{least}, "
            f"not {spec.height}x{spec.width}; "
            "scale the images up and set the recipe's model.height and model.width"
        )
