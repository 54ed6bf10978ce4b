"""Histograms of measured leakage: ranges of fixed width, added up over any number of batches.

They take a few hundred numbers. This module needs only numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import add, sub

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.validation import require


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts in ranges of equal width; each takes values above its beginning, up to its end."""

    lowest: float
    width: float
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.lowest) and math.isfinite(self.width) and self.width > 0,
            f"a histogram from {self.lowest} in steps of {self.width} is not valid",
        )

    @property
    def samples(self) -> int:
        """The number of counted values."""
        return sum(self.counts)

    def of(self, values: NDArray[np.float32]) -> Histogram:
        """Return a histogram of these values; those outside count in the nearest range."""
        steps = np.ceil((values.astype(np.float64) - self.lowest) / self.width) - 1
        ranges = np.clip(steps, 0, len(self.counts) - 1).astype(np.int64)
        return self._with(np.bincount(ranges, minlength=len(self.counts)).tolist())

    def __add__(self, other: Histogram) -> Histogram:
        return self._with(map(add, self.counts, self._comparable(other)))

    def __sub__(self, other: Histogram) -> Histogram:
        return self._with(map(sub, self.counts, self._comparable(other)))

    def beginning_of(self, percentile: float) -> float:
        """Return the beginning of the range with this percentile; the percentile is above it.

        `np.percentile` lies between two of the values; the lower of them is looked for.
        """
        rank = math.floor(percentile / 100 * (self.samples - 1)) + 1
        position = int(np.searchsorted(np.cumsum(self.counts), rank))
        return self.lowest + self.width * position

    def _comparable(self, other: Histogram) -> tuple[int, ...]:
        require(
            (self.lowest, self.width, len(self.counts))
            == (other.lowest, other.width, len(other.counts)),
            "histograms with different ranges cannot be added up",
        )
        return other.counts

    def _with(self, counts: Iterable[int]) -> Histogram:
        return Histogram(self.lowest, self.width, tuple(counts))


def _of_psnr() -> Histogram:
    return Histogram(0.0, 0.5, (0,) * 200)  # to 100 dB


def _of_ssim() -> Histogram:
    return Histogram(-1.0, 0.01, (0,) * 200)  # to 1


@dataclass(frozen=True, slots=True)
class LeakageHistograms:
    """The four measurements of a set of synthetic images."""

    psnr_paired: Histogram = field(default_factory=_of_psnr)
    psnr_nearest: Histogram = field(default_factory=_of_psnr)
    ssim_paired: Histogram = field(default_factory=_of_ssim)
    ssim_nearest: Histogram = field(default_factory=_of_ssim)

    def __add__(self, other: LeakageHistograms) -> LeakageHistograms:
        return self._each(lambda name: getattr(self, name) + getattr(other, name))

    def __sub__(self, other: LeakageHistograms) -> LeakageHistograms:
        return self._each(lambda name: getattr(self, name) - getattr(other, name))

    @property
    def samples(self) -> int:
        """The number of measured images."""
        return self.psnr_paired.samples

    def _each(self, make: Callable[[str], Histogram]) -> LeakageHistograms:
        return LeakageHistograms(*map(make, self.__slots__))


def histograms_of(batch: SyntheticBatch) -> LeakageHistograms:
    """Return the histograms of one batch."""
    empty = LeakageHistograms()
    return empty._each(lambda name: getattr(empty, name).of(getattr(batch, name)))
