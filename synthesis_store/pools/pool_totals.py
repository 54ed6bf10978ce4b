"""Totals over batches: of a pool, updated with every batch, and of one batch."""

from __future__ import annotations

from dataclasses import dataclass

from hfmds.domain.histograms import LeakageHistograms
from hfmds.wire.conversions.records import decode_histograms, encode_histograms
from synthesis_store.tables import BatchRow, PoolRow


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Totals over a number of batches. Each batch is of another device."""

    devices: int
    samples: int  # those that the leakage limits let pass
    leaking_samples: int
    leakage: LeakageHistograms  # of `samples`

    @classmethod
    def of(cls, batch: BatchRow) -> BatchTotals:
        """Return the totals of one stored batch."""
        leakage = decode_histograms(batch.leakage)
        return cls(1, batch.samples, batch.leaking_samples, leakage)

    def __add__(self, other: BatchTotals) -> BatchTotals:
        return BatchTotals(
            self.devices + other.devices,
            self.samples + other.samples,
            self.leaking_samples + other.leaking_samples,
            self.leakage + other.leakage,
        )

    def __sub__(self, other: BatchTotals) -> BatchTotals:
        return BatchTotals(
            self.devices - other.devices,
            self.samples - other.samples,
            self.leaking_samples - other.leaking_samples,
            self.leakage - other.leakage,
        )


def subtract_batch(pool: PoolRow, batch: BatchRow) -> None:
    """Take a batch out of the totals of its pool."""
    pool.devices -= 1
    pool.samples -= batch.samples
    pool.leaking_samples -= batch.leaking_samples
    leakage = decode_histograms(pool.leakage) - decode_histograms(batch.leakage)
    pool.leakage = encode_histograms(leakage)
