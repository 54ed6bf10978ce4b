"""Chooses the shards of a snapshot for a device that has no room for all of them.

A share consists of complete shards, because devices cache shards by digest and consecutive
snapshots have shards in common. The choice depends only on the snapshot, the limits and the seed:
all replicas choose the same, whatever the device already has. Each shard draws its luck from the
seed and its own digest. So a carried-over shard has the same luck in the next snapshot.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hfmds.algorithm.seeds import derive_seed
from hfmds.domain.pools import Shard


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """The limits of a share; 0 is no limit."""

    max_bytes: int = 0
    max_samples: int = 0

    def allow(self, size_bytes: int, samples: int) -> bool:
        """Return whether a share of this size is within the limits."""
        return (not self.max_bytes or size_bytes <= self.max_bytes) and (
            not self.max_samples or samples <= self.max_samples
        )


def choose(
    shards: Sequence[Shard], limits: ShareLimits, seed: int, *, balanced: bool
) -> Sequence[int]:
    """Return the positions of a share's shards, in order; none if each shard is too large.

    Draws shards until no other is within the limits. With `balanced`, each draw is for the class
    of which the share has least. A shard's chance is proportional to its part of that class. So
    classes come out even as far as the shards allow.
    """
    if limits.allow(sum(s.digest.size_bytes for s in shards), sum(s.samples for s in shards)):
        return range(len(shards))
    # Without balancing, all samples count as one class.
    counts = [shard.class_counts if balanced else {0: shard.samples} for shard in shards]
    queues = _queues(shards, counts, seed)
    drawn: Counter[int] = Counter()
    chosen: set[int] = set()
    size_bytes = samples = 0
    while queues:
        rarest = min(queues, key=drawn.__getitem__)
        for index in queues[rarest]:
            shard = shards[index]
            size = size_bytes + shard.digest.size_bytes, samples + shard.samples
            if index not in chosen and limits.allow(*size):
                chosen.add(index)
                drawn.update(counts[index])
                size_bytes, samples = size
                break
        else:
            del queues[rarest]
    return array("I", sorted(chosen))


def _queues(
    shards: Sequence[Shard], counts: Sequence[Mapping[int, int]], seed: int
) -> dict[int, Iterator[int]]:
    """Return the shards of each class in random order.

    The luck of a shard is exponentially distributed. Divided by the shard's part of the class, it
    is the smallest of all with a probability proportional to that part.
    """
    keys: dict[int, list[tuple[float, int]]] = {}
    for index, shard in enumerate(shards):
        luck = -math.log((derive_seed(seed, shard.digest.sha256) + 1) / 2**63)
        for label, count in counts[index].items():
            keys.setdefault(label, []).append((luck * shard.samples / count, index))
    # Classes are in random order, too: the first of equally rare classes draws first.
    classes = sorted(keys, key=lambda label: derive_seed(seed, label))
    return {label: iter([index for _, index in sorted(keys[label])]) for label in classes}
