"""Finds samples that look like an earlier one of their class, among any number of them.

The first of those that look alike leads a group; later ones are compared with leaders only, so that
groups do not grow from one image to another by small steps. What is found is the same whatever the
pool's policy then does about it.

An index in memory (usearch: a graph that is searched in a time that hardly grows) holds the
leaders. It is made anew for each snapshot, by one thread and in the order of the samples: the same
batches give the same snapshot. It may miss a near duplicate, one in hundreds (the table is in
docs/results/store.md), and never invents one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index

from hfmds.algorithm.pool_policy import PoolPolicy
from hfmds.algorithm.types import SyntheticBatch
from synthesis_store.likeness import greatest_square, vectors_of

_CONNECTIVITY, _EXPANSION_ADD, _EXPANSION_SEARCH = 16, 128, 64  # more finds more, and takes longer
_CANDIDATES = 8  # looked at for one of the same class; nearer ones of other classes are rare


class NearDuplicates:
    """Takes samples in the order of the merge; knows then which ones a snapshot leaves out."""

    def __init__(self, policy: PoolPolicy) -> None:
        self.found = 0
        self.left_out: set[bytes] = set()  # hashes
        self._action = policy.near_action
        self._leaders = LikenessIndex(policy.near_threshold)
        self._seen: set[bytes] = set()
        # Of each group: the sample that stays, and its leakage.
        self._best: list[tuple[bytes, float]] = []

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
            group = self._leaders.nearest(vector, label)
            if group is None:
                self._leaders.add(vector, label)
                self._best.append((name, leakage))
            else:
                self.found += 1
                self._settle(group, name, leakage)

    def _settle(self, group: int, name: bytes, leakage: float) -> None:
        if self._action == "count":
            return
        best, least = self._best[group]
        if self._action == "keep_better" and leakage < least:
            self._best[group] = (name, leakage)
            self.left_out.add(best)
        else:
            self.left_out.add(name)


class LikenessIndex:
    """Images by how they look, numbered in the order they come."""

    def __init__(self, threshold: float) -> None:
        self._greatest_square = greatest_square(threshold)
        self._labels: list[int] = []
        self._index: Index | None = None  # whose dimensions the first vector tells

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, vector: NDArray[np.int8], label: int) -> None:
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
        self._index.add(len(self._labels), vector, threads=1)
        self._labels.append(label)

    def nearest(self, vector: NDArray[np.int8], label: int) -> int | None:
        """The number of the image of this class that is most alike, if one is alike enough."""
        if self._index is None:
            return None
        found = self._index.search(vector, _CANDIDATES, threads=1)
        for number, square in zip(found.keys.tolist(), found.distances.tolist(), strict=True):
            if square > self._greatest_square:
                break
            if self._labels[number] == label:
                return int(number)
        return None
