"""Snapshots as clients read them: descriptions, shares of devices, and streams of shards.

The store reads a stream piece by piece, so memory does not depend on the size of a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence, Set
from functools import lru_cache

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Shard, SharedShard, Snapshot
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.storage.blobs import CHUNK_BYTES, Blobs
from hfmds.wire.chunks import outgoing
from synthesis_store.delivery.hot_shards import HotShards
from synthesis_store.delivery.shares import ShareLimits, choose
from synthesis_store.snapshots.snapshot_records import SnapshotRecords

_CACHED_SNAPSHOTS = 4  # the shards of a large one take some megabytes
_CACHED_PAGES = 32  # each takes less than a megabyte
_CACHED_SHARES = 512  # four bytes for each shard


class Snapshots:
    """The snapshots of this store. Methods but `stream` block."""

    def __init__(self, records: SnapshotRecords, blobs: Blobs) -> None:
        self._records = records
        self._blobs = blobs
        self._hot = HotShards(blobs)
        # All devices of a fleet ask for the same at the same time. A snapshot never changes.
        # If it was collected, `stream` refuses its shards.
        self._snapshot = lru_cache(_CACHED_SNAPSHOTS)(records.snapshot)
        self._page = lru_cache(_CACHED_PAGES)(records.snapshot)
        self._positions = lru_cache(_CACHED_SHARES)(self._choose)

    def get(self, snapshot_id: str, start: int = 0, most: int | None = None) -> Snapshot:
        """Return a snapshot with its shards, at most `most` of them from `start` on."""
        return self._records.snapshot(snapshot_id, start, most)

    def list(self, run_id: str | None, after: str = "", most: int | None = None) -> list[Snapshot]:
        """Return snapshots of one run, or of all, newest first and without shards."""
        return self._records.snapshots(run_id, after, most)

    def share(
        self,
        snapshot_id: str,
        have: Set[Digest],
        limits: ShareLimits,
        seed: int,
        *,
        balanced: bool,
        start: int,
        most: int,
    ) -> Sequence[SharedShard]:
        """Return a device's share of a snapshot, at most `most` shards from `start` on.

        Raises LimitExceeded if not even one shard is within the limits.
        """
        shards: Sequence[Shard]
        if limits == ShareLimits():
            shards = self._page(snapshot_id, start, most).shards
        else:
            positions = self._positions(snapshot_id, limits, seed, balanced)[start : start + most]
            all_shards = self._snapshot(snapshot_id).shards
            shards = [all_shards[position] for position in positions]
        return [SharedShard(shard, shard.digest not in have) for shard in shards]

    def _choose(
        self, snapshot_id: str, limits: ShareLimits, seed: int, balanced: bool
    ) -> Sequence[int]:
        shards = self._snapshot(snapshot_id).shards
        positions = choose(shards, limits, seed, balanced=balanced)
        if shards and not positions:
            smallest = min(shards, key=lambda shard: shard.digest.size_bytes)
            raise LimitExceeded(
                f"no shard of snapshot {snapshot_id} fits into {limits.max_bytes} bytes and "
                f"{limits.max_samples} samples (0: no limit); the smallest has {smallest.samples} "
                f"samples in {smallest.digest.size_bytes} bytes: raise the limit"
            )
        return positions

    async def stream(
        self, snapshot_id: str, digests: Sequence[Digest], offset: int = 0
    ) -> AsyncIterator[Sequence[bytes]]:
        """Yield the concatenated shards in chunks, from an offset in the first shard on.

        A chunk comes as pieces that belong one behind the other. Raises NotFound before the first
        chunk if the snapshot does not have all these shards.
        """
        await asyncio.to_thread(self._records.require_shards, snapshot_id, digests)
        if not 0 <= offset <= digests[0].size_bytes:
            raise InvalidInput(f"offset {offset} is outside shard {digests[0]}")
        groups = _groups(digests)
        with self._hot.in_use():
            for index, group in enumerate(groups):
                if group[0].size_bytes > CHUNK_BYTES:
                    async for chunk in outgoing(self._blobs, group[0], offset):
                        yield [chunk]
                else:
                    pieces = self._hot.find(group)
                    if pieces is None:
                        pieces = await asyncio.to_thread(self._hot.load, groups[index:])
                    yield [pieces[0][offset:], *pieces[1:]]
                offset = 0


def _groups(digests: Sequence[Digest]) -> list[list[Digest]]:
    """Group the digests in their order, so that each group fits in one chunk if it can."""
    groups: list[list[Digest]] = []
    size_bytes = 0
    for digest in digests:
        size_bytes += digest.size_bytes
        if not groups or size_bytes > CHUNK_BYTES:
            groups.append([])
            size_bytes = digest.size_bytes
        groups[-1].append(digest)
    return groups
