"""Finds near duplicates: samples that look like an earlier sample of their class.

The first of several similar samples leads a group. Later samples are compared with leaders only,
so that a group does not grow from image to image by small steps. The policy decides what happens
to near duplicates. It does not change which ones are found.

An index in memory for each class holds the leaders (usearch: a graph whose search time grows more
slowly than its size). One thread builds it for each snapshot, in the order of the samples, so the
same batches give the same snapshot. The index misses about one near duplicate in hundreds
(docs/results/store.md) and never reports a false one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index

from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from synthesis_store.snapshots.similarity import max_squared_distance, vectors_of

_CONNECTIVITY, _EXPANSION_ADD, _EXPANSION_SEARCH = 16, 128, 64  # more finds more and is slower


class NearDuplicates:
    """Takes samples in the order of the merge and decides which ones a snapshot leaves out."""

    def __init__(self, policy: PoolPolicy) -> None:
        self.count = 0
        self.left_out: set[bytes] = set()  # hashes
        self._policy = policy
        self._groups: dict[int, _Groups] = {}  # by class
        self._seen: set[bytes] = set()

    def add(self, batch: SyntheticBatch, hashes: Iterable[bytes]) -> None:
        """Look at the samples of a batch. Exact copies of earlier samples do not count."""
        # The nearest real image is the most similar one on the device: an upper bound of leakage.
        leakages = batch.psnr_nearest.tolist()
        labels = batch.images.labels.tolist()
        vectors = vectors_of(batch.images)
        for name, vector, label, leakage in zip(hashes, vectors, labels, leakages, strict=True):
            if name in self._seen:
                continue
            self._seen.add(name)
            if label not in self._groups:
                self._groups[label] = _Groups(SimilarityIndex(self._policy.near_threshold))
            self._sort_in(self._groups[label], vector, _Best(name, leakage))

    def _sort_in(self, groups: _Groups, vector: NDArray[np.int8], sample: _Best) -> None:
        number = groups.leaders.nearest(vector)
        if number is None:
            groups.leaders.add(vector)
            groups.best.append(sample)
            return
        self.count += 1
        best = groups.best[number]
        if self._policy.near_action == "keep_better" and sample.leakage < best.leakage:
            groups.best[number] = sample
            self.left_out.add(best.name)
        elif self._policy.near_action != "count":
            self.left_out.add(sample.name)


class _Best(NamedTuple):
    """The sample of a group that the snapshot keeps."""

    name: bytes
    leakage: float


@dataclass(frozen=True, slots=True)
class _Groups:
    """The groups of one class, by the numbers of their leaders."""

    leaders: SimilarityIndex
    best: list[_Best] = field(default_factory=list)


class SimilarityIndex:
    """An index of images by their looks, numbered in the order they come."""

    def __init__(self, threshold: float) -> None:
        self._max_square = max_squared_distance(threshold)
        self._index: Index | None = None  # made with the first vector, which gives its dimensions
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, vector: NDArray[np.int8]) -> None:
        """Add an image under the next number."""
        if self._index is None:
            # Distances between int8 vectors are integers, so no machine rounds them.
            self._index = Index(
                ndim=len(vector),
                metric="l2sq",
                dtype="i8",
                connectivity=_CONNECTIVITY,
                expansion_add=_EXPANSION_ADD,
                expansion_search=_EXPANSION_SEARCH,
                enable_key_lookups=False,
            )
        self._index.add(self._size, vector, threads=1)
        self._size += 1

    def nearest(self, vector: NDArray[np.int8]) -> int | None:
        """Return the number of the most similar image, or None if none is similar enough."""
        if self._index is None:
            return None
        matches = self._index.search(vector, 1, threads=1)
        if matches.distances[0] > self._max_square:
            return None
        return int(matches.keys[0])
