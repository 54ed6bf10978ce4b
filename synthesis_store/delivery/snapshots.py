"""Snapshots as calls see them: sealed, described, shared with devices, and streamed.

The store reads a stream piece by piece, so memory does not depend on the size of a snapshot.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Contribution, Shard, SharedShard, Snapshot
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.storage.blobs import CHUNK_BYTES, Blobs
from hfmds.wire.chunks import outgoing
from synthesis_store.delivery.hot_shards import HotShards
from synthesis_store.delivery.shares import ShareLimits, choose
from synthesis_store.snapshots.sealing import Sealing
from synthesis_store.snapshots.snapshot_records import SealedPool, SnapshotRecords

log = logging.getLogger(__name__)

_Seal = tuple[str, frozenset[Contribution]]  # a pool and its named batches

_CACHED_SNAPSHOTS = 4  # the shards of a large one take some megabytes
_CACHED_PAGES = 32  # each takes less than a megabyte
_CACHED_SHARES = 512  # four bytes for each shard


class Snapshots:
    """The snapshots of this store, for one event loop. `get`, `list` and `share` block."""

    def __init__(self, records: SnapshotRecords, blobs: Blobs, sealing: Sealing) -> None:
        self._records = records
        self._blobs = blobs
        self._sealing = sealing
        # Sealing a large pool takes minutes. A separate thread for it leaves the shared threads
        # to other calls.
        self._seal_thread = ThreadPoolExecutor(1, "sealing")
        self._seals: dict[_Seal, asyncio.Future[SealedPool]] = {}  # under way
        self._hot = HotShards(blobs)
        # All devices of a fleet ask for the same at the same time. A snapshot never changes.
        # If it was collected, `stream` refuses its shards.
        self._snapshot = lru_cache(_CACHED_SNAPSHOTS)(records.snapshot)
        self._page = lru_cache(_CACHED_PAGES)(records.snapshot)
        self._positions = lru_cache(_CACHED_SHARES)(self._choose)

    async def seal(self, pool_id: str, named: Iterable[Contribution]) -> SealedPool:
        """Seal the pool, or join the seal that is under way.

        If the caller is cancelled, the seal goes on. So a caller that hung up can ask again.
        """
        key = pool_id, frozenset(named)
        if key not in self._seals:
            run = contextvars.copy_context().run  # log records of the seal name the call
            loop = asyncio.get_running_loop()
            seal = loop.run_in_executor(self._seal_thread, run, self._sealing.seal, *key)
            self._seals[key] = seal
            seal.add_done_callback(lambda done: self._forget_seal(key, done))
        return await asyncio.shield(self._seals[key])

    async def close(self) -> None:
        """Start no more seals, and return when the one under way is over or given up."""
        self._seal_thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(
            asyncio.to_thread(self._sealing.stop), *self._seals.values(), return_exceptions=True
        )

    def _forget_seal(self, key: _Seal, done: asyncio.Future[SealedPool]) -> None:
        del self._seals[key]
        if not done.cancelled() and (error := done.exception()):
            log.warning("pool %s is not sealed: %s", key[0], error)

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
