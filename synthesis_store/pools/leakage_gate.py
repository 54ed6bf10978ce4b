"""What counts of a batch's leakage in its pool, and when a pool gives too much away and halts.

All numbers come from the devices, which alone have seen the real images. The store can hold them to
the policy; it cannot find out whether they are true. Which samples are over the limits is said in
`hfmds.algorithm.leakage.leakage_limits`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hfmds.algorithm.leakage.leakage_limits import leaking, passed
from hfmds.domain.histograms import LeakageHistograms, histograms_of
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import NO_LIMIT, PoolPolicy
from synthesis_store.snapshots.merging import Percentiles

_HALTS = {
    "psnr_paired": "halt_psnr_paired_p99_db",
    "psnr_nearest": "halt_psnr_nearest_p99_db",
    "ssim_paired": "halt_ssim_paired_p99",
    "ssim_nearest": "halt_ssim_nearest_p99",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What counts of a batch in its pool."""

    samples: int  # those that the limits of leakage let pass
    leaking_samples: int
    leakage: LeakageHistograms  # of `samples`


def measure(batch: SyntheticBatch, policy: PoolPolicy) -> Measured:
    """What counts of a batch in its pool."""
    over = leaking(batch, policy)
    taken = passed(batch, policy, over)
    return Measured(len(taken), int(over.sum()), histograms_of(taken))


def halt_reason(policy: PoolPolicy, leakage: LeakageHistograms) -> str:
    """Why a pool that is being filled must be halted; empty: it need not be.

    From histograms, which know a percentile to the width of a range only, and take it for the least
    that it can be: what passes here may be halted when it is sealed.
    """
    if leakage.samples < max(policy.halt_minimum_samples, 1):
        return ""
    for name, setting in _HALTS.items():
        limit = getattr(policy, setting)
        if limit < NO_LIMIT[setting]:
            at_least = getattr(leakage, name).beginning_of(99)
            if at_least >= limit:
                return _halted(name, at_least, setting, limit, leakage.samples)
    return ""


def final_halt_reason(policy: PoolPolicy, found: Iterable[Percentiles]) -> str:
    """Why a pool that is being sealed must be halted instead; empty: it need not be."""
    for percentiles in found:
        for name, setting in _HALTS.items():
            limit, p99 = getattr(policy, setting), percentiles.p99[name]
            if p99 > limit:
                return _halted(name, p99, setting, limit, percentiles.samples)
    return ""


def _halted(name: str, found: float, setting: str, limit: float, samples: int) -> str:
    value = f"{found:.2f} dB" if name.startswith("psnr") else f"{found:.3f}"
    return (
        f"the 99th percentile of {name} of its {samples} samples is {value} or "
        f"more, above {limit:g} ({setting}); start a run with synthesis that gives less away, or "
        "with another limit"
    )
