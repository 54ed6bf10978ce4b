"""Compares two snapshots: by shards, or exactly, by samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hfmds.algorithm.pool import content_hash
from hfmds.domain.digest import Digest
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pools import Shard, Snapshot

Download: TypeAlias = Callable[
    [Snapshot, Sequence[Shard]], AsyncIterator[tuple[Shard, SyntheticBatch]]
]


@dataclass(frozen=True, slots=True)
class Change:
    """A change in the number of samples."""

    removed: int
    carried: int  # in both
    added: int

    @property
    def before(self) -> int:
        return self.removed + self.carried

    @property
    def after(self) -> int:
        return self.carried + self.added


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two snapshots."""

    before: Snapshot
    after: Snapshot
    shards: Change
    samples: Change
    classes: tuple[Change, ...]
    exact: bool  # else a sample that moved to another shard counts as removed and added


def by_shards(before: Snapshot, after: Snapshot) -> Difference:
    """Compare the lists of shards of two snapshots."""
    removed, carried = _parted(before.shards, after)
    added, _ = _parted(after.shards, before)
    return _difference(
        before,
        after,
        (removed, carried, added),
        removed=_by_class(removed),
        carried=_by_class(carried),
        added=_by_class(added),
    )


async def by_samples(before: Snapshot, after: Snapshot, download: Download) -> Difference:
    """Compare two snapshots sample by sample; download only the shards that differ."""
    removed, carried = _parted(before.shards, after)
    added, _ = _parted(after.shards, before)
    old = Counter([name async for name in _names(download(before, removed))])
    new = Counter([name async for name in _names(download(after, added))])
    both = old & new
    return _difference(
        before,
        after,
        (removed, carried, added),
        removed=_labels(old - both),
        carried=_by_class(carried) + _labels(both),
        added=_labels(new - both),
        exact=True,
    )


def _difference(
    before: Snapshot,
    after: Snapshot,
    shards: tuple[list[Shard], list[Shard], list[Shard]],
    *,
    exact: bool = False,
    **samples: Counter[int],
) -> Difference:
    classes = max(len(before.class_histogram), len(after.class_histogram))
    return Difference(
        before,
        after,
        shards=Change(*map(len, shards)),
        samples=Change(**{kind: counts.total() for kind, counts in samples.items()}),
        classes=tuple(
            Change(**{kind: counts[c] for kind, counts in samples.items()}) for c in range(classes)
        ),
        exact=exact,
    )


def _parted(shards: Iterable[Shard], other: Snapshot) -> tuple[list[Shard], list[Shard]]:
    """Split shards into those that the other snapshot lacks and those that it has."""
    known: set[Digest] = {shard.digest for shard in other.shards}
    own: list[Shard] = []
    common: list[Shard] = []
    for shard in shards:
        (common if shard.digest in known else own).append(shard)
    return own, common


def _by_class(shards: Iterable[Shard]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for shard in shards:
        counts.update(shard.class_counts)
    return counts


async def _names(
    shards: AsyncIterator[tuple[Shard, SyntheticBatch]],
) -> AsyncIterator[tuple[int, str]]:
    """Return the label and the content hash of each sample."""
    async for _, batch in shards:
        for index, label in enumerate(batch.images.labels.tolist()):
            yield label, content_hash(batch.images, index)


def _labels(names: Counter[tuple[int, str]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for (label, _), count in names.items():
        counts[label] += count
    return counts
