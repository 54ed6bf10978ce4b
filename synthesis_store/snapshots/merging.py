"""Which samples a snapshot gets, and what it says of them, batch by batch.

Samples are known by their hashes and numbers here, so what was taken over needs not be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.leakage.measurement import summarise_leakage
from hfmds.algorithm.pool import content_hash
from hfmds.domain.histograms import LeakageHistograms
from hfmds.domain.learning import MEASUREMENTS, LeakageSummary, SyntheticBatch

HASH_BYTES = 16
"""Of a sample's SHA-256: among 10^9 samples two are equal by chance once in 10^20 times."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of the samples of a shard, in their order."""

    hashes: bytes
    measurements: bytes  # float32 [4, n], in the order of MEASUREMENTS
    class_counts: Mapping[int, int]

    @classmethod
    def of(cls, batch: SyntheticBatch, hashes: bytes | None = None) -> Known:
        """What is to be remembered of a batch, whose hashes may be known already."""
        values = np.stack([batch.measurements[name] for name in MEASUREMENTS])
        labels, counts = np.unique(batch.images.labels, return_counts=True)
        return cls(
            sample_hashes(batch) if hashes is None else hashes,
            values.astype("<f4").tobytes(),
            dict(zip(labels.tolist(), counts.tolist(), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The 99th of each measurement over so many samples."""

    samples: int
    p99: Mapping[str, float]

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> Percentiles:
        """`values` has a row for each measurement, and some samples."""
        found = np.percentile(values.astype(np.float64), 99, axis=1).tolist()
        return cls(values.shape[1], dict(zip(MEASUREMENTS, found, strict=True)))


class Merging:
    """Takes what is carried over, then batches in device-id order; of equal ones the first stays.

    For the batches alone it gives what `hfmds.algorithm.pool.merge` gives.
    """

    def __init__(
        self,
        classes: int,
        before: Iterable[bytes] = (),
        left_out: Set[bytes] = frozenset(),
    ) -> None:
        """`before`: hashes of the shards of the snapshot before, whether they are kept or not.

        `left_out`: the hash of each sample that has to go, whoever sent it.
        """
        self.samples = 0
        self.duplicates = 0
        self.repeated = 0
        self._left_out = left_out
        self._before = {one for hashes in before for one in split_hashes(hashes)}
        self._seen: set[bytes] = set()
        self._histogram = np.zeros(classes, np.int64)
        self._measurements: list[NDArray[np.float32]] = []
        self._taken_over = 0  # of these

    def take_over(self, known: Known) -> None:
        """Count the samples of a shard that was kept from the snapshot before."""
        self._seen.update(split_hashes(known.hashes))
        self._count(known)
        self._taken_over += 1

    def add(self, batch: SyntheticBatch) -> tuple[SyntheticBatch, Known]:
        """The samples of the batch that are new: `batch` itself if all are, maybe none."""
        fresh, kept_hashes = [], []
        for index, name in enumerate(split_hashes(sample_hashes(batch))):
            self.repeated += name in self._before
            if name in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(name)
            if name not in self._left_out:
                fresh.append(index)
                kept_hashes.append(name)
        kept = batch if len(fresh) == len(batch) else batch.take(np.array(fresh, np.int64))
        known = Known.of(kept, b"".join(kept_hashes))
        self._count(known)
        return kept, known

    def _count(self, known: Known) -> None:
        self.samples += len(known.hashes) // HASH_BYTES
        for label, count in known.class_counts.items():
            self._histogram[label] += count
        values = np.frombuffer(known.measurements, "<f4").reshape(len(MEASUREMENTS), -1)
        self._measurements.append(values)

    @property
    def class_histogram(self) -> tuple[int, ...]:
        """Kept samples per class."""
        return tuple(self._histogram.tolist())

    def leakage(self) -> LeakageSummary:
        """Measured leakage over the kept samples; there must be one."""
        return summarise_leakage(self._values("psnr_paired"), self._values("psnr_nearest"))

    def percentiles(self) -> list[Percentiles]:
        """Of the kept samples that are new, among which older ones hide nothing, and of all."""
        every = self._measurements
        parts = [every[self._taken_over :], every] if self._taken_over else [every]
        merged = [np.concatenate(part, axis=1) for part in parts if part]
        return [Percentiles.of(values) for values in merged if values.size]

    def histograms(self) -> LeakageHistograms:
        """How the measured leakage of the kept samples is spread."""
        empty = LeakageHistograms()
        names = [field.name for field in fields(empty)]
        return LeakageHistograms(*(getattr(empty, name).of(self._values(name)) for name in names))

    def _values(self, name: str) -> NDArray[np.float32]:
        row = MEASUREMENTS.index(name)
        return np.concatenate([values[row] for values in self._measurements])


def sample_hashes(batch: SyntheticBatch) -> bytes:
    """The hashes of all samples, one behind the other."""
    names = (content_hash(batch.images, index) for index in range(len(batch)))
    return b"".join(bytes.fromhex(name)[:HASH_BYTES] for name in names)


def split_hashes(hashes: bytes) -> list[bytes]:
    """Each sample's own."""
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]
