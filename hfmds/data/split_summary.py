"""Summaries of a split: the images of each device and class, for people and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmds.data.splits import Indices
from hfmds.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """The share of one device."""

    device: int
    images: int
    classes: int
    largest_class: str
    largest_share: float  # of the device's images


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """Images by device and class."""

    counts: NDArray[np.int64]  # [devices, classes]
    class_names: tuple[str, ...]
    available: int  # images before the split

    @property
    def rows(self) -> list[DeviceShare]:
        """One row for each device, in their order."""
        return [
            DeviceShare(
                device=device,
                images=int(own.sum()),
                classes=int((own > 0).sum()),
                largest_class=self.class_names[int(own.argmax())],
                largest_share=float(own.max() / own.sum()),
            )
            for device, own in enumerate(self.counts)
        ]

    @property
    def images(self) -> int:
        """The number of images that some device holds."""
        return int(self.counts.sum())

    @property
    def unused_classes(self) -> tuple[str, ...]:
        """Classes that no device holds: no device can learn them."""
        totals = self.counts.sum(axis=0)
        return tuple(name for name, n in zip(self.class_names, totals, strict=True) if not n)

    @property
    def totals(self) -> str:
        """The images and classes that all devices hold together, in words."""
        classes = len(self.class_names)
        return (
            f"{self.images} of {self.available} images, "
            f"{classes - len(self.unused_classes)} of {classes} classes"
        )

    def in_words(self) -> str:
        """Return what devices hold on average, and the classes that no device holds."""
        images = float(np.mean([row.images for row in self.rows]))
        classes = float(np.mean([row.classes for row in self.rows]))
        share = float(np.mean([row.largest_share for row in self.rows]))
        unused = (
            f"; no device holds {', '.join(self.unused_classes)}" if self.unused_classes else ""
        )
        return (
            f"Devices hold {self.totals}{unused}. A device holds {images:.1f} images of "
            f"{classes:.1f} classes on average, {100 * share:.0f} % of them of its largest class."
        )


def summarise_split(
    labels: NDArray[np.int64], shards: Sequence[Indices], class_names: Sequence[str]
) -> SplitSummary:
    """Summarise a split of samples with these labels, which are indices of `class_names`."""
    for device, shard in enumerate(shards):
        if not len(shard):
            raise ConfigurationError(
                f"device {device} (the first is 0) has no images; give it some, or leave it out"
            )
    counts = np.stack([np.bincount(labels[own], minlength=len(class_names)) for own in shards])
    return SplitSummary(counts, tuple(class_names), len(labels))
