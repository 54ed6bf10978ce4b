"""Many batches as one pool, without ever holding more than one of them.

Gives what `hfmds.algorithm.pool.merge` gives, batch by batch: a test compares the two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.pool import content_hash
from hfmds.algorithm.privacy import summarise_leakage
from hfmds.algorithm.types import LeakageSummary, SyntheticBatch


class Merge:
    """Takes batches in device-id order; of samples alike in pixels and label the first stays."""

    def __init__(self, classes: int) -> None:
        self.duplicates = 0
        self._seen: set[str] = set()
        self._histogram = np.zeros(classes, np.int64)
        self._psnr_paired: list[NDArray[np.float32]] = []
        self._psnr_nearest: list[NDArray[np.float32]] = []

    def add(self, batch: SyntheticBatch) -> SyntheticBatch:
        """The samples of the batch that are new: `batch` itself if all are, maybe none."""
        fresh = [index for index in range(len(batch)) if self._is_first(batch, index)]
        self.duplicates += len(batch) - len(fresh)
        kept = batch if len(fresh) == len(batch) else _take(batch, np.array(fresh, np.int64))
        self._histogram += np.bincount(kept.images.labels, minlength=len(self._histogram))
        self._psnr_paired.append(kept.psnr_paired)
        self._psnr_nearest.append(kept.psnr_nearest)
        return kept

    @property
    def samples(self) -> int:
        """How many were kept so far."""
        return len(self._seen)

    @property
    def class_histogram(self) -> tuple[int, ...]:
        """Kept samples per class."""
        return tuple(self._histogram.tolist())

    def leakage(self) -> LeakageSummary:
        """Measured leakage over the kept samples; there must be one."""
        return summarise_leakage(
            np.concatenate(self._psnr_paired), np.concatenate(self._psnr_nearest)
        )

    def _is_first(self, batch: SyntheticBatch, index: int) -> bool:
        name = content_hash(batch.images.pixels[index], int(batch.images.labels[index]))
        known = name in self._seen
        self._seen.add(name)
        return not known


def _take(batch: SyntheticBatch, indices: NDArray[np.int64]) -> SyntheticBatch:
    return SyntheticBatch(
        batch.images.take(indices), batch.psnr_paired[indices], batch.psnr_nearest[indices]
    )
