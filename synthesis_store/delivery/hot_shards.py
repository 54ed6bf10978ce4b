"""A cache in memory for the shards that a fleet fetches at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cachetools import LRUCache

from hfmds.domain.digest import Digest
from hfmds.storage.blobs import CHUNK_BYTES, Blobs

_CACHE_BYTES = 64 * CHUNK_BYTES
_AHEAD_BYTES = 4 * CHUNK_BYTES  # read in one trip to a thread, which costs as much as reading


class HotShards:
    """Keeps shards in memory while devices fetch them. Thread-safe."""

    def __init__(self, blobs: Blobs, max_bytes: int = _CACHE_BYTES) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()
        self._users = 0
        self._contents: LRUCache[Digest, bytes] = LRUCache(max_bytes, getsizeof=len)

    @property
    def size_bytes(self) -> int:
        """The size of all shards in memory."""
        return int(self._contents.currsize)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep shards while a device fetches some.

        The last user empties the cache, so that no shard outlives its deletion for long.
        """
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._contents.clear()

    def find(self, digests: Sequence[Digest]) -> list[bytes] | None:
        """Return the shards if all are in memory."""
        with self._lock:
            if not all(digest in self._contents for digest in digests):
                return None
            return [self._contents[digest] for digest in digests]

    def load(self, groups: Sequence[Sequence[Digest]]) -> list[bytes]:
        """Read the shards of the first group, and some of the next groups into memory."""
        first = [self._read(digest) for digest in groups[0]]
        ahead = sum(map(len, first))
        for group in groups[1:]:
            ahead += sum(digest.size_bytes for digest in group)
            if group[0].size_bytes > CHUNK_BYTES or ahead > _AHEAD_BYTES:
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
            if self._users and len(content) <= self._contents.maxsize:
                self._contents[digest] = content
        return content
