"""What a snapshot takes over from the one before it, by the pool's policy.

Whole shards where possible, since devices that have one need not fetch it again; one is cut only
where a number would not come out otherwise. Which samples stay depends on the snapshot before, on
the policy and on the seed alone.
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
"""The labels of the samples of a shard, by its position: asked only of those that are cut."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A shard that is taken over, or the samples of it that are."""

    position: int  # in the snapshot before
    samples: int
    indices: tuple[int, ...] | None = None  # None: all of it


def carry_over(
    policy: PoolPolicy, shards: Sequence[Shard], new_samples: int, labels_of: LabelsOf, seed: int
) -> list[Carried]:
    """What stays of these shards, oldest first as they are, beside so many new samples.

    New samples are never left out: where they alone are as many as the policy allows, or more,
    nothing is taken over.
    """
    whole = [Carried(position, shard.samples) for position, shard in enumerate(shards)]
    match policy.refresh:
        case "accumulate":
            kept = whole
        case "decay":
            kept = _decayed(shards, policy.refresh_keep_fraction, labels_of, seed)
        case _:  # replace
            return []
    if policy.refresh_max_samples:
        kept = _newest(kept, max(0, policy.refresh_max_samples - new_samples))
    return kept


def _newest(kept: Sequence[Carried], room: int) -> list[Carried]:
    """As many samples as there is room for; the oldest leave first."""
    excess = sum(one.samples for one in kept) - room
    newest = []
    for one in kept:
        leaving = min(max(excess, 0), one.samples)
        excess -= leaving
        if leaving == 0:
            newest.append(one)
        elif leaving < one.samples:
            indices = one.indices or tuple(range(one.samples))
            newest.append(replace(one, samples=one.samples - leaving, indices=indices[leaving:]))
    return newest


def _decayed(
    shards: Sequence[Shard], fraction: float, labels_of: LabelsOf, seed: int
) -> list[Carried]:
    """The fraction of each class, rounded down: first in whole shards, then from cut ones."""
    totals = Counter[int]()
    for shard in shards:
        totals.update(shard.class_counts)
    wanted = Counter({label: int(fraction * count) for label, count in totals.items()})
    order: list[int] = generator(seed, "decay").permutation(len(shards)).tolist()
    kept: dict[int, Carried] = {}
    for position in order:
        counts = shards[position].class_counts
        if all(count <= wanted[label] for label, count in counts.items()):
            wanted.subtract(counts)
            kept[position] = Carried(position, shards[position].samples)
    for position in order:
        if position in kept or not any(wanted[label] for label in shards[position].class_counts):
            continue
        indices = []
        for index, label in enumerate(labels_of(position).tolist()):
            if wanted[label] > 0:
                wanted[label] -= 1
                indices.append(index)
        kept[position] = Carried(position, len(indices), tuple(indices))
    return [kept[position] for position in sorted(kept)]
