"""What a pool's policy makes of measured leakage: what is refused or dropped, when a pool halts.

All numbers come from the devices, which alone have seen the real images. The store can hold them to
the policy; it cannot find out whether they are true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.histograms import LeakageHistograms, histograms_of
from hfmds.algorithm.pool_policy import NO_LIMIT, PoolPolicy
from hfmds.algorithm.types import LeakageSummary, SyntheticBatch
from hfmds.errors import InvalidInput

_LIMIT_OF = {
    "psnr_paired": "psnr_paired_max_db",
    "psnr_nearest": "psnr_nearest_max_db",
    "ssim_paired": "ssim_paired_max",
    "ssim_nearest": "ssim_nearest_max",
}
_HALTS = {"paired": "halt_psnr_paired_p99_db", "nearest": "halt_psnr_nearest_p99_db"}


@dataclass(frozen=True, slots=True)
class Measured:
    """What counts of a batch in its pool."""

    samples: int  # those that the limits of leakage let pass
    leaking_samples: int
    leakage: LeakageHistograms  # of `samples`


class TooMuchLeakage(InvalidInput):
    """A batch has samples over the limits, and its pool refuses such batches."""


def leaking(batch: SyntheticBatch, policy: PoolPolicy) -> NDArray[np.bool_]:
    """Which samples are over one of the policy's limits."""
    over = np.zeros(len(batch), np.bool_)
    for measurement, limit in _LIMIT_OF.items():
        over |= batch.measurements[measurement] > getattr(policy, limit)
    return over


def excesses(batch: SyntheticBatch, policy: PoolPolicy, index: int) -> list[str]:
    """By which measurements a sample is over the limits, in words."""
    return [
        f"{measurement} is {batch.measurements[measurement][index]:.4g}, above "
        f"{getattr(policy, limit):g} ({limit})"
        for measurement, limit in _LIMIT_OF.items()
        if batch.measurements[measurement][index] > getattr(policy, limit)
    ]


def passed(batch: SyntheticBatch, policy: PoolPolicy) -> SyntheticBatch:
    """What the pool takes of a batch: `batch` itself, or what is left when leaking ones go."""
    over = leaking(batch, policy)
    if policy.leakage_action != "drop" or not over.any():
        return batch
    return batch.take(np.flatnonzero(~over))


def measure(batch: SyntheticBatch, policy: PoolPolicy) -> Measured:
    """What counts of a batch in its pool."""
    taken = passed(batch, policy)
    return Measured(len(taken), int(leaking(batch, policy).sum()), histograms_of(taken))


def halt_reason(policy: PoolPolicy, leakage: LeakageHistograms) -> str:
    """Why a pool that is being filled must be halted; empty: it need not be.

    From histograms, which know a percentile to the width of a range only: what passes here may be
    halted when it is sealed, and nothing is halted here that would have passed there.
    """
    if leakage.samples < max(policy.halt_minimum_samples, 1):
        return ""
    at_least = {
        "paired": leakage.psnr_paired.beginning_of(99),
        "nearest": leakage.psnr_nearest.beginning_of(99),
    }
    for real, setting in _HALTS.items():
        limit = getattr(policy, setting)
        if limit < NO_LIMIT[setting] and at_least[real] >= limit:
            return _halted(real, at_least[real], setting, limit, leakage.samples)
    return ""


def final_halt_reason(policy: PoolPolicy, leakage: LeakageSummary, samples: int) -> str:
    """Why a pool that is being sealed must be halted instead; empty: it need not be."""
    found = {"paired": leakage.paired_p99, "nearest": leakage.nearest_p99}
    for real, setting in _HALTS.items():
        limit = getattr(policy, setting)
        if found[real] > limit:
            return _halted(real, found[real], setting, limit, samples)
    return ""


def _halted(real: str, decibels: float, setting: str, limit: float, samples: int) -> str:
    return (
        f"the 99th percentile of psnr_{real} of its {samples} samples is {decibels:.2f} dB or "
        f"more, above {limit:g} ({setting}); start a run with synthesis that gives less away, or "
        "with another limit"
    )
