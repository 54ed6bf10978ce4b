"""The nouns of the learning, as plain values over numpy: images, updates, pools, rounds.

Every package imports this module, so it imports neither torch nor gRPC nor protobuf.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.recipe import ModelSpec
from hfmds.domain.validation import require
from hfmds.errors import InvalidInput

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
"""A model's parameters and buffers by name."""

Pixels: TypeAlias = NDArray[np.uint8 | np.float16]
"""Pixels of images: uint8 from 0 to 255, as real images have, or float16 from 0 to 1."""


MAX_NAMED_SAMPLES = 10
"""The number of samples that a refusal names."""


class LazyTensors(Mapping[str, NDArray[Any]]):
    """Tensors that stay in storage; a reader can load a part of a tensor."""

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Whether there is such a tensor; Mapping's default would read it."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without its values."""

    @abstractmethod
    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of a tensor's values."""

    @abstractmethod
    def read(self, name: str, start: int, out: NDArray[Any]) -> None:
        """Fill `out`, of the tensor's type, with the values from `start` on, in C order."""


def _numbers(wrong: np.bool_ | NDArray[np.bool_]) -> str:
    """Return the first wrong samples as text; the message has to fit in a header."""
    numbers = np.flatnonzero(wrong).tolist()
    more = (
        f" and {len(numbers) - MAX_NAMED_SAMPLES} more" if len(numbers) > MAX_NAMED_SAMPLES else ""
    )
    return f"{', '.join(map(str, numbers[:MAX_NAMED_SAMPLES]))}{more}"


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images as uint8 [n, channels, height, width] and their class numbers as int64 [n].

    Synthetic ones may be float16 in [0, 1], if the recipe says so.
    Of images that are mixtures, `shares` says of which classes: float32 [n, classes], each row
    summing to 1; `labels` is then the class with the greatest share.
    """

    pixels: Pixels
    labels: NDArray[np.int64]
    shares: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        # Not by `require`: formatting the message is slower than the check.
        if self.pixels.dtype not in (np.uint8, np.float16) or self.pixels.ndim != 4:
            raise InvalidInput(
                f"images must be uint8 or float16 [n, channels, height, width], "
                f"not {self.pixels.dtype} {list(self.pixels.shape)}"
            )
        if self.pixels.dtype == np.float16:
            inside = ((self.pixels >= 0) & (self.pixels <= 1)).all(axis=(1, 2, 3))
            if not inside.all():
                raise InvalidInput(
                    "float16 images must have pixels from 0 to 1; "
                    f"samples with others: {_numbers(~inside)}"
                )
        if self.labels.dtype != np.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise InvalidInput(
                f"labels must be int64 [{len(self.pixels)}], "
                f"not {self.labels.dtype} {list(self.labels.shape)}"
            )
        if self.shares is not None:
            require(
                self.shares.dtype == np.float32
                and self.shares.shape[:-1] == self.labels.shape
                and self.shares.shape[1] > 0,
                f"class shares must be float32 [{len(self.pixels)}, classes], "
                f"not {self.shares.dtype} {list(self.shares.shape)}",
            )
            right = (
                (self.shares >= 0).all(axis=1)
                & np.isclose(self.shares.sum(axis=1), 1, atol=1e-3)
                & (self.shares.argmax(axis=1) == self.labels)
            )
            if not right.all():
                raise InvalidInput(
                    "class shares must not be negative, must sum to 1 for each image, and be "
                    f"greatest for its label; samples with others: {_numbers(~right)}"
                )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> LabelledImages:
        shares = None if self.shares is None else self.shares[indices]
        return LabelledImages(self.pixels[indices], self.labels[indices], shares)

    def require_fit(self, model: ModelSpec, what: str) -> None:
        """Refuse images that the model cannot take; `what` names them in the error."""
        shape = self.pixels.shape[1:]
        require(
            shape == model.image_shape,
            f"{what}: images are {list(shape)} (channels, height, width), "
            f"the model takes {list(model.image_shape)}; resize them or change the recipe's model",
        )
        if len(self) and not (self.labels.min() >= 0 and self.labels.max() < model.classes):
            raise InvalidInput(
                f"{what}: labels run from {self.labels.min()} to {self.labels.max()}, "
                f"the model has classes 0 to {model.classes - 1}"
            )
        if self.shares is not None and self.shares.shape[1] != model.classes:
            raise InvalidInput(
                f"{what}: class shares are of {self.shares.shape[1]} classes, "
                f"the model has {model.classes}"
            )


MEASUREMENTS = ("psnr_paired", "psnr_nearest", "ssim_paired", "ssim_nearest")
"""The measurements of a device for each synthetic image."""


@dataclass(frozen=True, slots=True)
class SyntheticBatch:
    """The synthetic images of one device at one refresh, with their measured leakage.

    PSNR in dB between images in [0, 1] and SSIM: to the real sample each was paired with, and to
    the nearest real sample on the device, by PSNR. Higher means more alike, so more leaked.
    """

    images: LabelledImages
    psnr_paired: NDArray[np.float32]
    psnr_nearest: NDArray[np.float32]
    ssim_paired: NDArray[np.float32]
    ssim_nearest: NDArray[np.float32]

    def __post_init__(self) -> None:
        for name, values in self.measurements.items():
            if values.dtype != np.float32 or values.shape != (len(self.images),):
                raise InvalidInput(
                    f"{name} must be float32 [{len(self.images)}], "
                    f"not {values.dtype} {list(values.shape)}"
                )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def measurements(self) -> dict[str, NDArray[np.float32]]:
        """The measured leakage, by name."""
        return {name: getattr(self, name) for name in MEASUREMENTS}

    def take(self, indices: NDArray[np.int64]) -> SyntheticBatch:
        measured = {name: values[indices] for name, values in self.measurements.items()}
        return SyntheticBatch(self.images.take(indices), **measured)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Payload bytes that devices moved for tasks."""

    received_bytes: int = 0
    sent_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.received_bytes + other.received_bytes, self.sent_bytes + other.sent_bytes
        )


@dataclass(frozen=True, slots=True)
class Update:
    """The answer of one device in one round. Its weights may stay in storage until read."""

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
    traffic: Traffic = Traffic()  # of making and sealing it


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The quality of a model on a held-out set or on a device's own data."""

    accuracy: float  # in [0, 1]
    loss: float
    samples: int


@dataclass(frozen=True, slots=True)
class DeviceEvaluation:
    """The quality of a model on the devices' own data: the mean over all their samples."""

    accuracy: float  # in [0, 1]
    loss: float
    samples: int
    devices: int
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state from which the loop continues after `round_number`."""

    round_number: int
    weights: Weights  # w^{t+1}
    pool: Pool | None = None
    server_state: Weights = field(default_factory=dict)  # of the server's optimiser


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One completed round of Algorithm 1."""

    checkpoint: Checkpoint
    cohort: tuple[str, ...]  # the devices whose updates counted
    refreshed: bool
    training_loss: float
    evaluation: Evaluation | None
    traffic: Traffic
    device_evaluation: DeviceEvaluation | None = None
    trouble: str = ""  # a fault of the server that did not stop the round
