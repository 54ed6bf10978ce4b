"""Chooses the samples that a snapshot carries over from the one before, by the pool's policy.

It carries over complete shards where possible, because a device that has a shard need not fetch
it again. It cuts a shard only where the policy's numbers require it. The choice depends only on
the snapshot before, the policy and the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.seeds import generator
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Shard

LabelsOf = Callable[[int], NDArray[np.int64]]
"""Reads the labels of the shard at a position. Only cut shards are read."""


@dataclass(frozen=True, slots=True)
class CarriedShard:
    """A shard, or some samples of it, that the snapshot carries over."""

    position: int  # in the snapshot before
    samples: int
    indices: tuple[int, ...] | None = None  # None: all samples


def carry_over(
    policy: PoolPolicy, shards: Sequence[Shard], new_samples: int, labels_of: LabelsOf, seed: int
) -> list[CarriedShard]:
    """Return what the snapshot carries over of `shards`, oldest first.

    New samples always have room: if they alone reach the policy's limit, nothing is carried over.
    """
    all_shards = [CarriedShard(position, shard.samples) for position, shard in enumerate(shards)]
    match policy.refresh:
        case "accumulate":
            carried = all_shards
        case "decay":
            carried = _decayed(shards, policy.refresh_keep_fraction, labels_of, seed)
        case _:  # replace
            return []
    if policy.refresh_max_samples:
        carried = _newest(carried, max(0, policy.refresh_max_samples - new_samples))
    return carried


def _newest(carried: Sequence[CarriedShard], room: int) -> list[CarriedShard]:
    """Return at most `room` samples. The oldest leave first."""
    excess = sum(shard.samples for shard in carried) - room
    newest = []
    for shard in carried:
        leaving = min(max(excess, 0), shard.samples)
        excess -= leaving
        if leaving == 0:
            newest.append(shard)
        elif leaving < shard.samples:
            indices = shard.indices or tuple(range(shard.samples))
            remaining = shard.samples - leaving
            newest.append(replace(shard, samples=remaining, indices=indices[leaving:]))
    return newest


def _decayed(
    shards: Sequence[Shard], fraction: float, labels_of: LabelsOf, seed: int
) -> list[CarriedShard]:
    """Return a fraction of each class, rounded down: complete shards first, then cut ones."""
    totals = Counter[int]()
    for shard in shards:
        totals.update(shard.class_counts)
    wanted = Counter({label: int(fraction * count) for label, count in totals.items()})
    order: list[int] = generator(seed, "decay").permutation(len(shards)).tolist()
    carried: dict[int, CarriedShard] = {}
    for position in order:
        counts = shards[position].class_counts
        if all(count <= wanted[label] for label, count in counts.items()):
            wanted.subtract(counts)
            carried[position] = CarriedShard(position, shards[position].samples)
    for position in order:
        has_wanted = any(wanted[label] for label in shards[position].class_counts)
        if position in carried or not has_wanted:
            continue
        indices = []
        for index, label in enumerate(labels_of(position).tolist()):
            if wanted[label] > 0:
                wanted[label] -= 1
                indices.append(index)
        carried[position] = CarriedShard(position, len(indices), tuple(indices))
    return [carried[position] for position in sorted(carried)]
