"""What one snapshot has that another has not: by shards, or, exactly, by samples."""

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
    """Samples of one class, or of all."""

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
    """From one snapshot to another."""

    before: Snapshot
    after: Snapshot
    shards: Change
    samples: Change
    classes: tuple[Change, ...]
    exact: bool  # else a sample in another shard than before counts as removed and added


def by_shards(before: Snapshot, after: Snapshot) -> Difference:
    """The difference as far as the manifests tell it; both list their shards."""
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
    """The difference sample by sample; only shards that are not in both are downloaded."""
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
    """Those that the other snapshot has not, and those that it has."""
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
    """Each sample's label and the hash of its content."""
    async for _, batch in shards:
        for index, label in enumerate(batch.images.labels.tolist()):
            yield label, content_hash(batch.images, index)


def _labels(names: Counter[tuple[int, str]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for (label, _), count in names.items():
        counts[label] += count
    return counts
