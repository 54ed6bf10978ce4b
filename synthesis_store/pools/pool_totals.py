"""Running totals of a pool, updated with every batch."""

from __future__ import annotations

from dataclasses import dataclass

from hfmds.domain.histograms import LeakageHistograms
from hfmds.wire.conversions.records import decode_histograms, encode_histograms
from synthesis_store.pools.leakage_gate import BatchCounts
from synthesis_store.tables import BatchRow, PoolRow


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """Totals over the batches of a pool."""

    devices: int
    samples: int
    leaking_samples: int
    leakage: LeakageHistograms

    @classmethod
    def of(cls, pool: PoolRow) -> PoolTotals:
        """Return the totals in a pool's row."""
        leakage = decode_histograms(pool.leakage)
        return cls(pool.devices, pool.samples, pool.leaking_samples, leakage)

    def plus(self, batch: BatchCounts) -> PoolTotals:
        """Return the totals with one batch more."""
        return PoolTotals(
            self.devices + 1,
            self.samples + batch.samples,
            self.leaking_samples + batch.leaking_samples,
            self.leakage + batch.leakage,
        )

    def minus(self, batch: BatchCounts) -> PoolTotals:
        """Return the totals with one batch less."""
        return PoolTotals(
            self.devices - 1,
            self.samples - batch.samples,
            self.leaking_samples - batch.leaking_samples,
            self.leakage - batch.leakage,
        )

    def write_to(self, pool: PoolRow) -> None:
        """Store the totals in a pool's row."""
        pool.devices = self.devices
        pool.samples = self.samples
        pool.leaking_samples = self.leaking_samples
        pool.leakage = encode_histograms(self.leakage)


def counts_of(batch: BatchRow) -> BatchCounts:
    """Return what a batch adds to the totals of its pool."""
    return BatchCounts(batch.samples, batch.leaking_samples, decode_histograms(batch.leakage))


def subtract_batch(pool: PoolRow, batch: BatchRow) -> None:
    """Take a batch out of the totals of its pool."""
    PoolTotals.of(pool).minus(counts_of(batch)).write_to(pool)
