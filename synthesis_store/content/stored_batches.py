"""Batches and shards as they are stored."""

from __future__ import annotations

from hfmds.domain.digest import Digest
from hfmds.domain.learning import SyntheticBatch
from hfmds.errors import NotFound, Unavailable
from hfmds.storage.blobs import Blobs
from hfmds.wire.tensors import read_batch


class ContentMissing(Unavailable):
    """The storage does not have the content of a batch or shard."""

    def __init__(self, digest: Digest) -> None:
        super().__init__(f"batch {digest} is not stored; try again")
        self.digest = digest


def read_stored_batch(blobs: Blobs, digest: Digest, *, to_check: bool = False) -> SyntheticBatch:
    """Read a batch or shard, or raise ContentMissing. `to_check` is that of `read_batch`."""
    try:
        path = blobs.local_path(digest)
        return read_batch(path, f"batch {digest}", to_check=to_check)
    except (NotFound, FileNotFoundError) as error:
        raise ContentMissing(digest) from error
