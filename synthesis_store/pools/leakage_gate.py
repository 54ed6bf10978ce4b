"""The leakage gate: what a batch adds to its pool, and when a pool leaks too much and halts.

All measurements come from the devices, because only they have the real images. The store applies
the pool's policy to these numbers and cannot check them. `leakage_limits` of `hfmds.algorithm`
decides which samples are over the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.leakage.leakage_limits import accepted, leaking
from hfmds.domain.histograms import LeakageHistograms, histograms_of
from hfmds.domain.learning import MEASUREMENTS, SyntheticBatch
from hfmds.domain.pool_policy import NO_LIMIT, PoolPolicy
from synthesis_store.pools.pool_totals import BatchTotals

_HALTS = {
    "psnr_paired": "halt_psnr_paired_p99_db",
    "psnr_nearest": "halt_psnr_nearest_p99_db",
    "ssim_paired": "halt_ssim_paired_p99",
    "ssim_nearest": "halt_ssim_nearest_p99",
}


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The 99th percentile of each measurement over a number of samples."""

    samples: int
    p99: Mapping[str, float]

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> Percentiles:
        """Compute the percentiles of `values`, which has a row for each measurement."""
        p99 = np.percentile(values.astype(np.float64), 99, axis=1).tolist()
        return cls(values.shape[1], dict(zip(MEASUREMENTS, p99, strict=True)))


def totals_of(batch: SyntheticBatch, policy: PoolPolicy) -> BatchTotals:
    """Return what a batch adds to the totals of its pool, by the pool's leakage limits."""
    over = leaking(batch, policy)
    passing = accepted(batch, policy, over)
    return BatchTotals(1, len(passing), int(over.sum()), histograms_of(passing))


def halt_reason(policy: PoolPolicy, leakage: LeakageHistograms) -> str:
    """Return why an open pool must halt; empty if it need not.

    A histogram gives a percentile only to the width of a bin. This function uses the lower end
    of the bin, so a pool that passes here may still halt when it is sealed.
    """
    if leakage.samples < max(policy.halt_minimum_samples, 1):
        return ""
    for name, setting in _HALTS.items():
        limit = getattr(policy, setting)
        if limit < NO_LIMIT[setting]:
            p99 = getattr(leakage, name).beginning_of(99)
            if p99 >= limit:
                return _reason(name, p99, setting, limit, leakage.samples)
    return ""


def final_halt_reason(policy: PoolPolicy, percentiles: Iterable[Percentiles]) -> str:
    """Return why a pool must halt instead of being sealed; empty if it need not."""
    for group in percentiles:
        for name, setting in _HALTS.items():
            limit, p99 = getattr(policy, setting), group.p99[name]
            if p99 > limit:
                return _reason(name, p99, setting, limit, group.samples)
    return ""


def _reason(name: str, p99: float, setting: str, limit: float, samples: int) -> str:
    value = f"{p99:.2f} dB" if name.startswith("psnr") else f"{p99:.3f}"
    return (
        f"the 99th percentile of {name} of its {samples} samples is {value} or more, "
        f"above {limit:g} ({setting}); start a run whose synthesis leaks less, "
        "or that has another limit"
    )
