"""The nouns of the learning, as plain values over numpy: what a recipe is, what a device sends.

Imported by every package, so it must not import torch, gRPC or protobuf. Symbols of the paper
(sections 3-4, Table 1) stand next to the field they name; defaults are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.errors import InvalidInput

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
"""A model's parameters and buffers by name."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidInput(message)


def _check(name: str, value: float, in_range: bool, rule: str) -> None:
    """Refuse a setting out of its range, or not a number, by its full name."""
    _require(in_range and math.isfinite(value), f"{name} is {value}; it must be {rule}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which network, for which images: enough to build it anywhere."""

    architecture: str = "paper-cnn"
    channels: int = 3
    height: int = 32
    width: int = 32
    classes: int = 10

    def __post_init__(self) -> None:
        for name in ("channels", "height", "width", "classes"):
            value = getattr(self, name)
            _check(f"model.{name}", value, value >= 1, "at least 1")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Per-channel mean and standard deviation of pixels in [0, 1]; the space the model sees."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _require(
            len(self.mean) == len(self.std),
            f"normalisation has {len(self.mean)} means but {len(self.std)} deviations",
        )
        _require(
            all(math.isfinite(m) for m in self.mean),
            f"normalisation.mean {self.mean} must be numbers",
        )
        _require(
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
        _check("training.batch_size", self.batch_size, self.batch_size >= 1, "at least 1")
        _check("training.local_epochs", self.local_epochs, self.local_epochs >= 1, "at least 1")
        _check("training.learning_rate", self.learning_rate, self.learning_rate > 0, "above 0")
        _check("training.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        _check("training.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        _check("training.alpha", self.alpha, 0 <= self.alpha <= 1, "in [0, 1]")


@dataclass(frozen=True, slots=True)
class SynthesisRecipe:
    """How and when devices synthesise (DataSynthesis in Algorithm 1).

    mu = 0 is FMDS; matching_weight = 0 leaves L_C only; steps = 0 is the unoptimised-noise control.
    """

    every_rounds: int = 20  # T_d
    first_round: int = 20  # the paper's t mod T_d = 0 is first_round = every_rounds
    samples_per_device: int = 100  # B_g
    steps: int = 500  # T_g
    learning_rate: float = 0.02  # Adam's
    mu: float = 0.5  # how far features are pushed from their prototype
    prototype_momentum: float = 0.5  # lambda
    matching_weight: float = 1.0  # factor of L_HFM

    def __post_init__(self) -> None:
        _check("synthesis.every_rounds", self.every_rounds, self.every_rounds >= 1, "at least 1")
        _check("synthesis.first_round", self.first_round, self.first_round >= 1, "at least 1")
        _check(
            "synthesis.samples_per_device",
            self.samples_per_device,
            self.samples_per_device >= 1,
            "at least 1",
        )
        _check("synthesis.steps", self.steps, self.steps >= 0, "at least 0")
        _check("synthesis.learning_rate", self.learning_rate, self.learning_rate > 0, "above 0")
        _check("synthesis.mu", self.mu, True, "a number")
        _check(
            "synthesis.prototype_momentum",
            self.prototype_momentum,
            0 <= self.prototype_momentum <= 1,
            "in [0, 1]",
        )
        _check(
            "synthesis.matching_weight",
            self.matching_weight,
            self.matching_weight >= 0,
            "at least 0",
        )

    def refreshes(self, round_number: int) -> bool:
        """Whether the pool is made anew at the start of this round."""
        since_first = round_number - self.first_round
        return since_first >= 0 and since_first % self.every_rounds == 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines what a run learns. Without `synthesis` it is FedAvg."""

    model: ModelSpec
    normalisation: Normalisation
    rounds: int  # T
    seed: int = 0
    training: TrainingRecipe = field(default_factory=TrainingRecipe)
    synthesis: SynthesisRecipe | None = None
    cohort_size: int = 0  # |K_t|; 0 means every available device
    class_names: tuple[str, ...] = ()  # empty: classes are their numbers

    def __post_init__(self) -> None:
        _check("rounds", self.rounds, self.rounds >= 1, "at least 1")
        _check("seed", self.seed, 0 <= self.seed < 2**63, "in [0, 2^63)")
        _check("cohort_size", self.cohort_size, self.cohort_size >= 0, "at least 0")
        _require(
            len(self.normalisation.mean) == self.model.channels,
            f"normalisation has {len(self.normalisation.mean)} channels, "
            f"the model {self.model.channels}",
        )
        _require(
            len(self.class_names) in (0, self.model.classes),
            f"{len(self.class_names)} class names for {self.model.classes} classes",
        )

    @property
    def method(self) -> str:
        """The name reports and metrics use."""
        return "hfmds" if self.synthesis else "fedavg"


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images as uint8 [n, channels, height, width] and their class numbers as int64 [n]."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        _require(
            self.pixels.dtype == np.uint8 and self.pixels.ndim == 4,
            f"images must be uint8 [n, channels, height, width], "
            f"not {self.pixels.dtype} {list(self.pixels.shape)}",
        )
        _require(
            self.labels.dtype == np.int64 and self.labels.shape == self.pixels.shape[:1],
            f"labels must be int64 [{len(self.pixels)}], "
            f"not {self.labels.dtype} {list(self.labels.shape)}",
        )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> LabelledImages:
        return LabelledImages(self.pixels[indices], self.labels[indices])

    def require_fit(self, model: ModelSpec, what: str) -> None:
        """Refuse images the model cannot take, naming `what` they are."""
        shape = self.pixels.shape[1:]
        _require(
            shape == model.image_shape,
            f"{what}: images are {list(shape)} (channels, height, width), "
            f"the model takes {list(model.image_shape)}; resize them or change the recipe's model",
        )
        if len(self) and not (self.labels.min() >= 0 and self.labels.max() < model.classes):
            raise InvalidInput(
                f"{what}: labels run from {self.labels.min()} to {self.labels.max()}, "
                f"the model has classes 0 to {model.classes - 1}"
            )


@dataclass(frozen=True, slots=True)
class SyntheticBatch:
    """What one device made at one refresh, with the leakage it measured before sending.

    PSNR in dB between images in [0, 1]: to the real sample each was paired with, and to the
    nearest real sample on the device. Higher means more alike, so more leaked.
    """

    images: LabelledImages
    psnr_paired: NDArray[np.float32]
    psnr_nearest: NDArray[np.float32]

    def __post_init__(self) -> None:
        for name in ("psnr_paired", "psnr_nearest"):
            values = getattr(self, name)
            _require(
                values.dtype == np.float32 and values.shape == (len(self.images),),
                f"{name} must be float32 [{len(self.images)}], "
                f"not {values.dtype} {list(values.shape)}",
            )

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Payload bytes one device moved for one task, or many devices for many."""

    received_bytes: int = 0
    sent_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.received_bytes + other.received_bytes, self.sent_bytes + other.sent_bytes
        )


@dataclass(frozen=True, slots=True)
class Update:
    """One device's answer to one round. Weights may be loaded lazily from storage."""

    device_id: str
    weights: Weights
    samples: int
    loss: float  # mean over the last local epoch
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class LeakageSummary:
    """PSNR in dB over a set of synthetic images; the paired mean is the paper's Table 3 number."""

    paired_mean: float
    paired_p99: float
    paired_max: float
    nearest_mean: float
    nearest_p99: float
    nearest_max: float


@dataclass(frozen=True, slots=True)
class Pool:
    """A sealed pool by the id of its snapshot; the images stay where the fleet keeps them."""

    snapshot_id: str
    samples: int
    leakage: LeakageSummary
    traffic: Traffic = Traffic()  # what making and sealing it cost


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a model does on a held-out set."""

    accuracy: float  # in [0, 1]
    loss: float
    samples: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that the loop needs to go on after `round_number`: w^{t+1} and the pool."""

    round_number: int
    weights: Weights
    pool: Pool | None = None


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round of Algorithm 1 as the loop saw it."""

    checkpoint: Checkpoint
    cohort: tuple[str, ...]  # the devices whose updates were counted
    refreshed: bool
    training_loss: float
    evaluation: Evaluation | None
    traffic: Traffic
