"""Snapshots on their way to devices: the choice of shares, and shards in streams.

A fleet asks for the same shards at the same time, so those that were just read stay in memory for
the next device, up to a limit. More than that and a piece of each stream is never in memory,
however large a snapshot is.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Shard, SharedShard
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.storage.blobs import CHUNK_BYTES, Blobs
from hfmds.wire.chunks import outgoing
from synthesis_store.serving.shares import Limits, choose
from synthesis_store.snapshots.snapshot_records import SnapshotRecords

_REMEMBERED = 4  # snapshots; a large one has some megabytes of shards to list
_REMEMBERED_PAGES = 32  # of which none has a megabyte
_REMEMBERED_SHARES = 512  # four bytes for each shard of them
_HOT_BYTES = 64 * CHUNK_BYTES
_AHEAD_BYTES = 4 * CHUNK_BYTES  # are read in one trip to a thread, which costs as much as reading


class Serving:
    """What devices are given of snapshots."""

    def __init__(self, records: SnapshotRecords, blobs: Blobs) -> None:
        self._records = records
        self._blobs = blobs
        self._hot = HotBlobs(blobs)
        # A fleet asks for the same at once, and page by page; it never changes. Of a snapshot that
        # was collected meanwhile the shards are refused.
        self._snapshot = lru_cache(_REMEMBERED)(records.snapshot)
        self._page = lru_cache(_REMEMBERED_PAGES)(records.snapshot)
        self._places = lru_cache(_REMEMBERED_SHARES)(self._choose)

    def share(
        self,
        snapshot_id: str,
        have: Set[Digest],
        limits: Limits,
        seed: int,
        *,
        balanced: bool,
        start: int,
        most: int,
    ) -> list[SharedShard]:
        """What a device gets of a snapshot, and what of that it lacks; may block.

        At most so many from a position in the share on. LimitExceeded if not even one shard is
        small enough.
        """
        shards: Sequence[Shard]
        if limits == Limits():
            shards = self._page(snapshot_id, start, most).shards
        else:
            places = self._places(snapshot_id, limits, seed, balanced)[start : start + most]
            every = self._snapshot(snapshot_id).shards
            shards = [every[place] for place in places]
        return [SharedShard(shard, shard.digest not in have) for shard in shards]

    def _choose(self, snapshot_id: str, limits: Limits, seed: int, balanced: bool) -> Sequence[int]:
        shards = self._snapshot(snapshot_id).shards
        places = choose(shards, limits, seed, balanced=balanced)
        if shards and not places:
            smallest = min(shards, key=lambda shard: shard.digest.size_bytes)
            raise LimitExceeded(
                f"no shard of snapshot {snapshot_id} fits into {limits.max_bytes} bytes and "
                f"{limits.max_samples} samples (0: any); the smallest has {smallest.samples} "
                f"samples in {smallest.digest.size_bytes} bytes"
            )
        return places

    async def stream(
        self, snapshot_id: str, digests: Sequence[Digest], offset: int = 0
    ) -> AsyncIterator[Sequence[bytes]]:
        """Shards of a snapshot one behind the other, from an offset in the first on, in chunks.

        A chunk comes in pieces that belong one behind the other. NotFound, before the first chunk,
        if one of them is not in it.
        """
        await asyncio.to_thread(self._records.require_shards, snapshot_id, digests)
        if not 0 <= offset <= digests[0].size_bytes:
            raise InvalidInput(f"offset {offset} is outside shard {digests[0]}")
        groups = _groups(digests)
        with self._hot.in_use():
            for at, group in enumerate(groups):
                if _is_large(group):
                    async for chunk in outgoing(self._blobs, group[0], offset):
                        yield [chunk]
                else:
                    pieces = self._hot.find(group)
                    if pieces is None:
                        pieces = await asyncio.to_thread(self._hot.load, groups[at:])
                    yield [pieces[0][offset:], *pieces[1:]]
                offset = 0


class HotBlobs:
    """Blobs in memory while they are in use, the least recently used ones leaving; thread-safe."""

    def __init__(self, blobs: Blobs, max_bytes: int = _HOT_BYTES) -> None:
        self._blobs = blobs
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._users = 0
        self._contents: OrderedDict[Digest, bytes] = OrderedDict()
        self.size_bytes = 0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, blobs stay; with the last user they leave, so that none outlives its deletion."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._contents.clear()
                    self.size_bytes = 0

    def find(self, digests: Sequence[Digest]) -> list[bytes] | None:
        """The blobs, if all are in memory."""
        with self._lock:
            if not all(digest in self._contents for digest in digests):
                return None
            for digest in digests:
                self._contents.move_to_end(digest)
            return [self._contents[digest] for digest in digests]

    def load(self, groups: Sequence[Sequence[Digest]]) -> list[bytes]:
        """The blobs of the first group, read; some of the next groups are then in memory, too."""
        first = [self._read(digest) for digest in groups[0]]
        ahead = sum(map(len, first))
        for group in groups[1:]:
            ahead += sum(digest.size_bytes for digest in group)
            if _is_large(group) or ahead > _AHEAD_BYTES:
                break
            for digest in group:
                self._read(digest)
        return first

    def _read(self, digest: Digest) -> bytes:
        with self._lock:
            if digest in self._contents:
                return self._contents[digest]
        content = b"".join(self._blobs.read(digest))
        with self._lock:
            if self._users and digest not in self._contents:
                self._contents[digest] = content
                self.size_bytes += len(content)
                while self.size_bytes > self._max_bytes:
                    _, left = self._contents.popitem(last=False)
                    self.size_bytes -= len(left)
        return content


def _groups(digests: Sequence[Digest]) -> list[list[Digest]]:
    """The digests in their order, together as long as they fit in one chunk."""
    groups: list[list[Digest]] = []
    size_bytes = 0
    for digest in digests:
        size_bytes += digest.size_bytes
        if not groups or size_bytes > CHUNK_BYTES:
            groups.append([])
            size_bytes = digest.size_bytes
        groups[-1].append(digest)
    return groups


def _is_large(group: Sequence[Digest]) -> bool:
    return group[0].size_bytes > CHUNK_BYTES
