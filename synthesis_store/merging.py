"""What a snapshot says of its samples, gathered while batches are merged one at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.pool import Merge
from hfmds.algorithm.privacy import summarise_leakage
from hfmds.algorithm.types import LeakageSummary, SyntheticBatch


class MergeWithSummary(Merge):
    """A merge that knows the classes and the leakage of what it kept."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self._histogram = np.zeros(classes, np.int64)
        self._psnr_paired: list[NDArray[np.float32]] = []
        self._psnr_nearest: list[NDArray[np.float32]] = []

    def add(self, batch: SyntheticBatch) -> SyntheticBatch:
        kept = super().add(batch)
        self._histogram += np.bincount(kept.images.labels, minlength=len(self._histogram))
        self._psnr_paired.append(kept.psnr_paired)
        self._psnr_nearest.append(kept.psnr_nearest)
        return kept

    @property
    def class_histogram(self) -> tuple[int, ...]:
        """Kept samples per class."""
        return tuple(self._histogram.tolist())

    def leakage(self) -> LeakageSummary:
        """Measured leakage over the kept samples; there must be one."""
        return summarise_leakage(
            np.concatenate(self._psnr_paired), np.concatenate(self._psnr_nearest)
        )
