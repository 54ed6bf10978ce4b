"""What a pool's row says of all its batches: kept with each change, so that nobody adds them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Row

from hfmds.domain.histograms import LeakageHistograms
from hfmds.wire.conversions.records import decode_histograms, encode_histograms
from synthesis_store.pools.leakage_gate import Measured
from synthesis_store.tables import BatchRow, PoolRow

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
"""Columns with the names that the tables give them: quicker to read than a row of the ORM."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Over the batches of a pool."""

    devices: int
    samples: int
    leaking_samples: int
    leakage: LeakageHistograms

    def plus(self, batch: Measured) -> Totals:
        """With a batch that comes into the pool."""
        return Totals(
            self.devices + 1,
            self.samples + batch.samples,
            self.leaking_samples + batch.leaking_samples,
            self.leakage + batch.leakage,
        )

    def minus(self, batch: Measured) -> Totals:
        """Without a batch that was in it."""
        return Totals(
            self.devices - 1,
            self.samples - batch.samples,
            self.leaking_samples - batch.leaking_samples,
            self.leakage - batch.leakage,
        )

    def columns(self) -> dict[str, object]:
        """As the pool's row has them."""
        return {"devices": self.devices, **columns_of(self)}


def totals_of(pool: PoolRow | AnyRow) -> Totals:
    """What a pool's row says."""
    leakage = decode_histograms(pool.leakage)
    return Totals(pool.devices, pool.samples, pool.leaking_samples, leakage)


def measured_of(batch: BatchRow | AnyRow) -> Measured:
    """What a batch's row says: what the totals have of it."""
    return Measured(batch.samples, batch.leaking_samples, decode_histograms(batch.leakage))


def columns_of(counted: Measured | Totals) -> dict[str, object]:
    """The columns that the rows of pools and of batches have alike."""
    return {
        "samples": counted.samples,
        "leaking_samples": counted.leaking_samples,
        "leakage": encode_histograms(counted.leakage),
    }


def take_out(pool: PoolRow, batch: BatchRow) -> None:
    """Count a batch no more."""
    for name, value in totals_of(pool).minus(measured_of(batch)).columns().items():
        setattr(pool, name, value)
