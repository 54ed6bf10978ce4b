"""What a pool's row says of all its batches: kept with each change, so that nobody adds them up."""

from __future__ import annotations

from hfmds.wire.records import decode_histograms, encode_histograms
from synthesis_store.privacy_gate import Measured as Measured
from synthesis_store.tables import BatchRow, PoolRow


def put_in(pool: PoolRow, batch: BatchRow, measured: Measured) -> None:
    """Count a batch that comes into the pool."""
    batch.samples = measured.samples
    batch.leaking_samples = measured.leaking_samples
    batch.leakage = encode_histograms(measured.leakage)
    pool.devices += 1
    pool.samples += batch.samples
    pool.leaking_samples += batch.leaking_samples
    pool.leakage = encode_histograms(decode_histograms(pool.leakage) + measured.leakage)


def take_out(pool: PoolRow, batch: BatchRow) -> None:
    """Count a batch no more."""
    pool.devices -= 1
    pool.samples -= batch.samples
    pool.leaking_samples -= batch.leaking_samples
    left = decode_histograms(pool.leakage) - decode_histograms(batch.leakage)
    pool.leakage = encode_histograms(left)
