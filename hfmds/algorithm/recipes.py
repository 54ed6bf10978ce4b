"""What a run is to learn, and how: everything that determines its result, as plain values.

Imported by every package, so it must not import torch, gRPC or protobuf. Symbols of the paper
(sections 3-4, Table 1) stand next to the field they name; defaults are the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hfmds.algorithm.limits import (
    require,
    require_above_zero,
    require_at_least,
    require_range,
)
from hfmds.algorithm.methods.settings import FedAvg, Method


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which network, for which images: enough to build it anywhere."""

    architecture: str = "paper-cnn"
    channels: int = 3
    height: int = 32
    width: int = 32
    classes: int = 10

    def __post_init__(self) -> None:
        require_at_least(
            1,
            model__channels=self.channels,
            model__height=self.height,
            model__width=self.width,
            model__classes=self.classes,
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Per-channel mean and standard deviation of pixels in [0, 1]; the space the model sees."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.std),
            f"normalisation has {len(self.mean)} means but {len(self.std)} deviations",
        )
        require(
            all(math.isfinite(m) for m in self.mean),
            f"normalisation.mean {self.mean} must be numbers",
        )
        require(
            all(s > 0 and math.isfinite(s) for s in self.std),
            f"normalisation.std {self.std} must be positive numbers",
        )


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """One device's local work in one round (ClientUpdate in Algorithm 1)."""

    batch_size: int = 10  # B, of real and of synthetic samples each
    local_epochs: int = 1
    learning_rate: float = 0.005  # eta
    momentum: float = 0.9
    weight_decay: float = 5e-4
    alpha: float = 0.1  # weight of the real loss once there is a pool; 1 before

    def __post_init__(self) -> None:
        require_at_least(
            1, training__batch_size=self.batch_size, training__local_epochs=self.local_epochs
        )
        require_above_zero(training__learning_rate=self.learning_rate)
        require_range("training.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        require_at_least(0, training__weight_decay=self.weight_decay)
        require_range("training.alpha", self.alpha, 0 <= self.alpha <= 1, "in [0, 1]")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines what a run learns."""

    model: ModelSpec
    normalisation: Normalisation
    rounds: int  # T
    seed: int = 0
    training: TrainingRecipe = field(default_factory=TrainingRecipe)
    method: Method = field(default_factory=FedAvg)
    cohort_size: int = 0  # |K_t|; 0 means every available device
    class_names: tuple[str, ...] = ()  # empty: classes are their numbers

    def __post_init__(self) -> None:
        require_at_least(1, rounds=self.rounds)
        require_range("seed", self.seed, 0 <= self.seed < 2**63, "in [0, 2^63)")
        require_at_least(0, cohort_size=self.cohort_size)
        require(
            len(self.normalisation.mean) == self.model.channels,
            f"normalisation has {len(self.normalisation.mean)} channels, "
            f"the model {self.model.channels}",
        )
        require(
            len(self.class_names) in (0, self.model.classes),
            f"{len(self.class_names)} class names for {self.model.classes} classes",
        )
        require(
            self.rounds > self.method.preparation_rounds,
            f"rounds is {self.rounds}, but {self.method.name} prepares for "
            f"{self.method.preparation_rounds} before it trains the classifier; ask for more",
        )
