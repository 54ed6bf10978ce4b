"""Snapshots on their way to devices: the choice of shares, and shards in streams.

Content is read in pieces of a megabyte as it is sent, so a thousand devices cost no more memory
than their pieces, however large the snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence, Set
from functools import lru_cache

from hfmds.digest import Digest
from hfmds.storage.blobs import Blobs
from hfmds.wire.chunks import outgoing
from hfmds.wire.types import SharedShard
from synthesis_store.shares import Limits, share_of
from synthesis_store.snapshot_records import SnapshotRecords

_REMEMBERED = 4  # snapshots; a large one has some megabytes of shards to list


class Serving:
    """What devices are given of snapshots."""

    def __init__(self, records: SnapshotRecords, blobs: Blobs) -> None:
        self._records = records
        self._blobs = blobs
        # A fleet asks for the same one at once, and page by page; it never changes. Of one that was
        # collected meanwhile the shards are refused.
        self._snapshot = lru_cache(_REMEMBERED)(records.snapshot)

    def share(
        self, snapshot_id: str, have: Set[Digest], limits: Limits, seed: int, *, balanced: bool
    ) -> list[SharedShard]:
        """What a device gets of a snapshot, and what of that it lacks; may block."""
        return share_of(self._snapshot(snapshot_id), have, limits, seed, balanced=balanced)

    async def stream(
        self, snapshot_id: str, digests: Sequence[Digest], offset: int = 0
    ) -> AsyncIterator[bytes]:
        """Shards of a snapshot one behind the other, from an offset in the first on, in chunks.

        NotFound, before the first chunk, if one of them is not in it.
        """
        await asyncio.to_thread(self._records.require_shards, snapshot_id, digests)
        async for chunk in outgoing(self._blobs, digests[0], offset, digests[1:]):
            yield chunk
