"""Chooses the samples of a synthetic batch that may leave the device. Only numpy.

The store applies the same limits again. But images over the limits must not leave the device at
all. And a device with few classes should send what fits its quota instead of a batch that is
refused.
"""

from __future__ import annotations

import numpy as np

from hfmds.algorithm.leakage.leakage_limits import accepted, leakage_error, require_no_refusal
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy

_WHAT = "the synthetic images"


def releasable(batch: SyntheticBatch, policy: PoolPolicy) -> SyntheticBatch:
    """Return the samples that may leave the device; TooMuchLeakage if there are none."""
    require_no_refusal(batch, policy, _WHAT)
    kept = accepted(batch, policy)
    if not len(kept):
        raise leakage_error(batch, policy, range(len(batch)), _WHAT)
    return _within_quota(kept, policy.max_samples_per_class)


def _within_quota(batch: SyntheticBatch, most: int) -> SyntheticBatch:
    """Return the first `most` samples of each class; 0 means all."""
    labels = batch.images.labels
    if not most or np.bincount(labels).max() <= most:
        return batch
    first = [np.flatnonzero(labels == label)[:most] for label in np.unique(labels)]
    return batch.take(np.sort(np.concatenate(first)))
