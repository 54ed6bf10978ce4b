"""Which shards of a snapshot a device gets when the whole is too much for it.

Whole shards only: they are cached by digest, and refreshes have them in common. The choice depends
on the snapshot, the limits and the seed, and on nothing else: not on what the device has already,
and not on which replica answers. Each shard draws its luck from the seed and its own digest, so one
that is carried over to the next snapshot is as lucky there.
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
class Limits:
    """How much a share may be; 0 is no limit."""

    max_bytes: int = 0
    max_samples: int = 0

    def allow(self, size_bytes: int, samples: int) -> bool:
        """Whether so much is within them."""
        return (not self.max_bytes or size_bytes <= self.max_bytes) and (
            not self.max_samples or samples <= self.max_samples
        )


def choose(shards: Sequence[Shard], limits: Limits, seed: int, *, balanced: bool) -> Sequence[int]:
    """Where the shards of a share are in the manifest, in its order; none if each is too large.

    They are drawn until no other is within the limits. If `balanced`, each draw is for the class
    that the share has least of, and a shard's chance is as large as its part of that class: the
    classes come out even as far as there are shards for it.
    """
    if limits.allow(sum(s.digest.size_bytes for s in shards), sum(s.samples for s in shards)):
        return range(len(shards))
    # Unless classes are to be balanced, all samples are of one.
    counts = [shard.class_counts if balanced else {0: shard.samples} for shard in shards]
    queues = _queues(shards, counts, seed)
    drawn: Counter[int] = Counter()
    chosen: set[int] = set()
    size_bytes = samples = 0
    while queues:
        wanted = min(queues, key=drawn.__getitem__)
        for index in queues[wanted]:
            shard = shards[index]
            grown = size_bytes + shard.digest.size_bytes, samples + shard.samples
            if index not in chosen and limits.allow(*grown):
                chosen.add(index)
                drawn.update(counts[index])
                size_bytes, samples = grown
                break
        else:
            del queues[wanted]
    return array("I", sorted(chosen))


def _queues(
    shards: Sequence[Shard], counts: Sequence[Mapping[int, int]], seed: int
) -> dict[int, Iterator[int]]:
    """For each class the shards that have some of it, in a random order.

    A shard's luck is exponentially distributed. Divided by its part of the class it is the least of
    all with a probability in proportion to that part.
    """
    keys: dict[int, list[tuple[float, int]]] = {}
    for index, shard in enumerate(shards):
        luck = -math.log((derive_seed(seed, shard.digest.sha256) + 1) / 2**63)
        for c, count in counts[index].items():
            keys.setdefault(c, []).append((luck * shard.samples / count, index))
    # Classes in random order, too: of those that are level the first is drawn for.
    classes = sorted(keys, key=lambda c: derive_seed(seed, c))
    return {c: iter([index for _, index in sorted(keys[c])]) for c in classes}
