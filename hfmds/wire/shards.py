"""Downloads the shards of a snapshot to look at them, one after the other."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from hfmds.domain.digest import Digest
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pools import Shard, Snapshot
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content
from hfmds.wire.tensors import read_batch


class ShardSource(Protocol):
    """Serves shards, as a `StoreClient` does."""

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int:
        """Fetch the shards that are not here; return the bytes that crossed the network."""


async def download_shards(
    source: ShardSource, snapshot: Snapshot, shards: Sequence[Shard]
) -> AsyncIterator[tuple[Shard, SyntheticBatch]]:
    """Yield these shards of a snapshot; only one is on disk at a time."""
    with tempfile.TemporaryDirectory(prefix="hfmds-") as folder:
        largest = max((shard.digest.size_bytes for shard in shards), default=0)
        content = Content(
            FolderBlobs(Path(folder, "blobs"), durable=False),
            Staging(Path(folder, "staging"), largest),
        )
        for shard in shards:
            await source.download_shards(snapshot.snapshot_id, [shard.digest], content)
            path = content.blobs.local_path(shard.digest)
            batch = await asyncio.to_thread(read_batch, path, f"shard {shard.digest}")
            content.blobs.delete(shard.digest)
            yield shard, batch


def shards_with(shards: Sequence[Shard], classes: Sequence[int], per_class: int) -> list[Shard]:
    """Return the first shards that together have `per_class` images of each class."""
    counts: Counter[int] = Counter()
    chosen = []
    for shard in shards:
        if any(shard.class_counts.get(c) and counts[c] < per_class for c in classes):
            chosen.append(shard)
            counts.update(shard.class_counts)
    return chosen
