"""Merges batches into a snapshot and keeps its statistics, batch by batch.

This module knows samples by their hashes and measurements, so it need not read carried shards.
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
from synthesis_store.pools.leakage_gate import Percentiles

HASH_BYTES = 16
"""Bytes of a sample's SHA-256: among 10^9 samples, two are equal by chance once in 10^20 cases."""


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """The hash, the measurements and the class of each sample of a shard, in their order."""

    hashes: bytes
    measurements: bytes  # float32 [4, n], in the order of MEASUREMENTS
    class_counts: Mapping[int, int]

    @classmethod
    def of(cls, batch: SyntheticBatch, hashes: bytes | None = None) -> SampleFacts:
        """Return the facts about a batch. The caller may know its hashes."""
        values = np.stack([batch.measurements[name] for name in MEASUREMENTS])
        labels, counts = np.unique(batch.images.labels, return_counts=True)
        return cls(
            sample_hashes(batch) if hashes is None else hashes,
            values.astype("<f4").tobytes(),
            dict(zip(labels.tolist(), counts.tolist(), strict=True)),
        )


class Merging:
    """Merges carried shards, then batches in device-id order. The first of equal samples stays.

    Without carried shards, the result is that of `hfmds.algorithm.pool.merge`.
    """

    def __init__(
        self,
        classes: int,
        before: Iterable[bytes] = (),
        left_out: Set[bytes] = frozenset(),
    ) -> None:
        """Begin a snapshot.

        `before` has the hashes of all shards of the snapshot before. `left_out` has the hashes
        of samples that must not be in the snapshot.
        """
        self.samples = 0
        self.duplicates = 0
        self.repeated = 0
        self._left_out = left_out
        self._before = {name for hashes in before for name in split_hashes(hashes)}
        self._seen: set[bytes] = set()
        self._histogram = np.zeros(classes, np.int64)
        self._measurements: list[NDArray[np.float32]] = []
        self._carried_shards = 0  # the first of `_measurements`

    def carry(self, facts: SampleFacts) -> None:
        """Count the samples of a carried shard."""
        self._seen.update(split_hashes(facts.hashes))
        self._count(facts)
        self._carried_shards += 1

    def add(self, batch: SyntheticBatch) -> tuple[SyntheticBatch, SampleFacts]:
        """Return the new samples of the batch: `batch` itself if all are new, or none."""
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
        facts = SampleFacts.of(kept, b"".join(kept_hashes))
        self._count(facts)
        return kept, facts

    def _count(self, facts: SampleFacts) -> None:
        self.samples += len(facts.hashes) // HASH_BYTES
        for label, count in facts.class_counts.items():
            self._histogram[label] += count
        values = np.frombuffer(facts.measurements, "<f4").reshape(len(MEASUREMENTS), -1)
        self._measurements.append(values)

    @property
    def class_histogram(self) -> tuple[int, ...]:
        """The number of kept samples of each class."""
        return tuple(self._histogram.tolist())

    def leakage(self) -> LeakageSummary:
        """Summarise the measured leakage of the kept samples. There must be at least one."""
        return summarise_leakage(self._values("psnr_paired"), self._values("psnr_nearest"))

    def percentiles(self) -> list[Percentiles]:
        """Return the percentiles of the new samples, and of all samples.

        Carried samples could hide the leakage of new ones, so both must pass the policy.
        """
        values = self._measurements
        groups = [values[self._carried_shards :], values] if self._carried_shards else [values]
        merged = [np.concatenate(group, axis=1) for group in groups if group]
        return [Percentiles.of(values) for values in merged if values.size]

    def histograms(self) -> LeakageHistograms:
        """Return the histograms of the measured leakage of the kept samples."""
        empty = LeakageHistograms()
        names = [field.name for field in fields(empty)]
        return LeakageHistograms(*(getattr(empty, name).of(self._values(name)) for name in names))

    def _values(self, name: str) -> NDArray[np.float32]:
        row = MEASUREMENTS.index(name)
        return np.concatenate([values[row] for values in self._measurements])


def sample_hashes(batch: SyntheticBatch) -> bytes:
    """Return the concatenated hashes of all samples."""
    names = (content_hash(batch.images, index) for index in range(len(batch)))
    return b"".join(bytes.fromhex(name)[:HASH_BYTES] for name in names)


def split_hashes(hashes: bytes) -> list[bytes]:
    """Return the hash of each sample."""
    return [hashes[start : start + HASH_BYTES] for start in range(0, len(hashes), HASH_BYTES)]
