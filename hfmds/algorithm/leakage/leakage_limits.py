"""Finds synthetic images that are over a pool's limits of leakage. Only numpy.

The device checks before it sends them (`leakage_filter`), and the store checks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import MAX_NAMED_SAMPLES, SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.errors import InvalidInput

MAX_TOLD_CHARACTERS = 800
"""Most characters about single samples in a refusal: it travels in a short header."""

_LIMIT_OF = {
    "psnr_paired": "psnr_paired_max_db",
    "psnr_nearest": "psnr_nearest_max_db",
    "ssim_paired": "ssim_paired_max",
    "ssim_nearest": "ssim_nearest_max",
}


class TooMuchLeakage(InvalidInput):
    """A batch has samples over the limits, and its pool refuses such batches."""


def leaking(batch: SyntheticBatch, policy: PoolPolicy) -> NDArray[np.bool_]:
    """Return for each sample whether it is over one of the policy's limits."""
    over = np.zeros(len(batch), np.bool_)
    for measurement, limit in _LIMIT_OF.items():
        over |= getattr(batch, measurement) > getattr(policy, limit)
    return over


def accepted(
    batch: SyntheticBatch, policy: PoolPolicy, over: NDArray[np.bool_] | None = None
) -> SyntheticBatch:
    """Return the samples that a pool takes: `batch` itself, or the batch without leaking samples.

    `over` is the result of `leaking`, if the caller has it already.
    """
    if over is None:
        over = leaking(batch, policy)
    if policy.leakage_action != "drop" or not over.any():
        return batch
    return batch.take(np.flatnonzero(~over))


def require_no_refusal(batch: SyntheticBatch, policy: PoolPolicy, what: str) -> None:
    """Raise TooMuchLeakage if the pool refuses this batch; `what` names the batch."""
    if policy.leakage_action == "refuse":
        over = np.flatnonzero(leaking(batch, policy)).tolist()
        if over:
            raise leakage_error(batch, policy, over, what)


def leakage_error(
    batch: SyntheticBatch, policy: PoolPolicy, over: Sequence[int], what: str
) -> TooMuchLeakage:
    """Make the error that lists the limits that these samples exceed."""
    reasons = {index: _excesses(batch, policy, index) for index in over}
    return TooMuchLeakage(describe_faults(what, len(batch), reasons))


def describe_faults(what: str, samples: int, faults: Mapping[int, Sequence[str]]) -> str:
    """Describe why a batch is refused, from the faults of its samples."""
    parts: list[str] = []
    room = MAX_TOLD_CHARACTERS
    for index in sorted(faults):
        part = f"sample {index}: {' and '.join(faults[index])}"
        room -= len(part)
        if parts and (room < 0 or len(parts) == MAX_NAMED_SAMPLES):
            parts.append(f"{len(faults) - len(parts)} more are not listed")
            break
        parts.append(part)
    return f"{what}: {len(faults)} of {samples} samples cannot be taken: {'; '.join(parts)}"


def _excesses(batch: SyntheticBatch, policy: PoolPolicy, index: int) -> list[str]:
    """Describe each limit that a sample exceeds."""
    return [
        f"{measurement} {batch.measurements[measurement][index]:.4g} is above "
        f"{getattr(policy, limit):.4g}"
        for measurement, limit in _LIMIT_OF.items()
        if batch.measurements[measurement][index] > getattr(policy, limit)
    ]
