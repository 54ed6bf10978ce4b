"""Downloads of models and snapshots: verified, and written completely or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hfmds.algorithm.pool import concatenate
from hfmds.domain.digest import Digest
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pools import Snapshot
from hfmds.domain.runs import Round
from hfmds.errors import ConfigurationError, CorruptData, NotFound
from hfmds.storage.files import sync_file, sync_folder
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.shards import download_shards


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Make a draft in the folder of `path` that replaces it, durably, if the block succeeds."""
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield draft
        sync_file(draft)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


async def download_model(client: AdminClient, run_id: str, completed: Round, path: Path) -> None:
    """Download the model of a round as a safetensors file."""
    sha256, size_bytes = hashlib.sha256(), 0
    with replacing(path) as draft:
        with draft.open("wb") as file:
            async for chunk in client.download_model(run_id, completed.number):
                sha256.update(chunk)
                size_bytes += len(chunk)
                file.write(chunk)
        digest = Digest(sha256.hexdigest(), size_bytes)
        if digest != completed.weights:
            raise CorruptData(
                f"the model of run {run_id} after round {completed.number} arrived as {digest}, "
                f"not as {completed.weights}; try again"
            )


async def download_snapshot(client: StoreClient, snapshot: Snapshot) -> SyntheticBatch:
    """Download all images of a snapshot, with their PSNR. The snapshot must list its shards."""
    if not snapshot.shards:
        raise NotFound(f"snapshot {snapshot.snapshot_id} has no shards")
    shards = download_shards(client, snapshot, snapshot.shards)
    return concatenate([batch async for _, batch in shards])
