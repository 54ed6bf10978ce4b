"""Finds samples that look like an earlier one of their class, among any number of them.

The first of those that look alike leads a group; later ones are compared with leaders only, so that
groups do not grow from one image to another by small steps. What is found is the same whatever the
pool's policy then does about it.

An index in memory for each class (usearch: a graph that is searched in a time that grows slower
than it) holds the leaders. It is made anew for each snapshot, by one thread and in the order of the
samples: the same batches give the same snapshot. It may miss a near duplicate, one in hundreds (the
table is in docs/results/store.md), and never invents one.
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
from synthesis_store.snapshots.similarity import greatest_square, vectors_of

_CONNECTIVITY, _EXPANSION_ADD, _EXPANSION_SEARCH = 16, 128, 64  # more finds more, and takes longer


class NearDuplicates:
    """Takes samples in the order of the merge; knows then which ones a snapshot leaves out."""

    def __init__(self, policy: PoolPolicy) -> None:
        self.found = 0
        self.left_out: set[bytes] = set()  # hashes
        self._policy = policy
        self._groups: dict[int, _Groups] = {}  # by class
        self._seen: set[bytes] = set()

    def add(self, batch: SyntheticBatch, hashes: Iterable[bytes]) -> None:
        """Look at the samples of a batch; copies of one that was here before are passed over."""
        # No real image on the device is more alike than the nearest: the most that leaked.
        leakages = batch.psnr_nearest.tolist()
        labels = batch.images.labels.tolist()
        vectors = vectors_of(batch.images)
        for name, vector, label, leakage in zip(hashes, vectors, labels, leakages, strict=True):
            if name in self._seen:
                continue
            self._seen.add(name)
            if label not in self._groups:
                self._groups[label] = _Groups(LikenessIndex(self._policy.near_threshold))
            self._sort_in(self._groups[label], vector, _Best(name, leakage))

    def _sort_in(self, groups: _Groups, vector: NDArray[np.int8], sample: _Best) -> None:
        number = groups.leaders.nearest(vector)
        if number is None:
            groups.leaders.add(vector)
            groups.best.append(sample)
            return
        self.found += 1
        best = groups.best[number]
        if self._policy.near_action == "keep_better" and sample.leakage < best.leakage:
            groups.best[number] = sample
            self.left_out.add(best.name)
        elif self._policy.near_action != "count":
            self.left_out.add(sample.name)


class _Best(NamedTuple):
    """The sample of a group that stays."""

    name: bytes
    leakage: float


@dataclass(frozen=True, slots=True)
class _Groups:
    """Those of one class, by the numbers of their leaders."""

    leaders: LikenessIndex
    best: list[_Best] = field(default_factory=list)


class LikenessIndex:
    """Images by how they look, numbered in the order they come."""

    def __init__(self, threshold: float) -> None:
        self._greatest_square = greatest_square(threshold)
        self._index: Index | None = None  # whose dimensions the first vector tells
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, vector: NDArray[np.int8]) -> None:
        """Give an image the next number."""
        if self._index is None:
            # Distances between int8 vectors are whole numbers, which no machine rounds.
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
        """The number of the image that is most alike, if one is alike enough."""
        if self._index is None:
            return None
        found = self._index.search(vector, 1, threads=1)
        return int(found.keys[0]) if found.distances[0] <= self._greatest_square else None
