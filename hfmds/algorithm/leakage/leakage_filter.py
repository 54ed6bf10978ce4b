"""What of a synthetic batch may leave the device that made it, by the recipe's pool policy.

The store would refuse or drop the rest; but what leaks must not even be sent, and a device whose
images are of few classes should have some of them taken rather than none. Only numpy.
"""

from __future__ import annotations

import numpy as np

from hfmds.algorithm.leakage.leakage_limits import passed, require_no_refusal, too_much
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy

_WHAT = "the synthetic images"


def releasable(batch: SyntheticBatch, policy: PoolPolicy) -> SyntheticBatch:
    """The batch, or what may be sent of it; TooMuchLeakage if nothing may."""
    require_no_refusal(batch, policy, _WHAT)
    kept = passed(batch, policy)
    if not len(kept):
        raise too_much(batch, policy, range(len(batch)), _WHAT)
    return _within_quota(kept, policy.max_samples_per_class)


def _within_quota(batch: SyntheticBatch, most: int) -> SyntheticBatch:
    """The first samples of each class, as many as the pool takes; 0: all."""
    labels = batch.images.labels
    if not most or np.bincount(labels).max() <= most:
        return batch
    first = [np.flatnonzero(labels == label)[:most] for label in np.unique(labels)]
    return batch.take(np.sort(np.concatenate(first)))
