"""Which synthetic images are over a pool's limits of leakage. Only numpy.

A device asks before it sends them (`release.py`), and a store asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import MAX_TOLD_SAMPLES, SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.errors import InvalidInput

MAX_TOLD_CHARACTERS = 800
"""How much a refusal says of single samples: it travels in a header, which is short."""

_LIMIT_OF = {
    "psnr_paired": "psnr_paired_max_db",
    "psnr_nearest": "psnr_nearest_max_db",
    "ssim_paired": "ssim_paired_max",
    "ssim_nearest": "ssim_nearest_max",
}


class TooMuchLeakage(InvalidInput):
    """A batch has samples over the limits, and its pool does not take such batches."""


def leaking(batch: SyntheticBatch, policy: PoolPolicy) -> NDArray[np.bool_]:
    """Which samples are over one of the policy's limits."""
    over = np.zeros(len(batch), np.bool_)
    for measurement, limit in _LIMIT_OF.items():
        over |= getattr(batch, measurement) > getattr(policy, limit)
    return over


def passed(
    batch: SyntheticBatch, policy: PoolPolicy, over: NDArray[np.bool_] | None = None
) -> SyntheticBatch:
    """What a pool takes of a batch: `batch` itself, or what is left when leaking ones go.

    `over`: which ones those are, if that is known already.
    """
    if over is None:
        over = leaking(batch, policy)
    if policy.leakage_action != "drop" or not over.any():
        return batch
    return batch.take(np.flatnonzero(~over))


def require_no_refusal(batch: SyntheticBatch, policy: PoolPolicy, what: str) -> None:
    """Raise what a pool answers that refuses this batch for its leakage, if it does."""
    if policy.leakage_action == "refuse":
        over = np.flatnonzero(leaking(batch, policy)).tolist()
        if over:
            raise too_much(batch, policy, over, what)


def too_much(
    batch: SyntheticBatch, policy: PoolPolicy, over: Sequence[int], what: str
) -> TooMuchLeakage:
    """The error that says of these samples why they are over the limits."""
    reasons = {index: _excesses(batch, policy, index) for index in over}
    return TooMuchLeakage(told(what, len(batch), reasons))


def told(what: str, samples: int, faults: Mapping[int, Sequence[str]]) -> str:
    """Why a batch cannot be taken, from what is wrong with each of its samples."""
    parts: list[str] = []
    room = MAX_TOLD_CHARACTERS
    for index in sorted(faults):
        part = f"sample {index}: {' and '.join(faults[index])}"
        room -= len(part)
        if parts and (room < 0 or len(parts) == MAX_TOLD_SAMPLES):
            parts.append(f"{len(faults) - len(parts)} more are not listed")
            break
        parts.append(part)
    return f"{what}: {len(faults)} of {samples} samples cannot be taken: {'; '.join(parts)}"


def _excesses(batch: SyntheticBatch, policy: PoolPolicy, index: int) -> list[str]:
    """By which measurements a sample is over the limits, in words."""
    return [
        f"{measurement} {batch.measurements[measurement][index]:.4g} is above "
        f"{getattr(policy, limit):.4g}"
        for measurement, limit in _LIMIT_OF.items()
        if batch.measurements[measurement][index] > getattr(policy, limit)
    ]
