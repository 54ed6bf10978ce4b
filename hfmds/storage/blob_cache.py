"""Local copies of blobs from an object store, to stream and to memory-map."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from hfmds.domain.digest import Digest
from hfmds.errors import NotFound
from hfmds.storage.blobs import FolderBlobs

_GRACE_SECONDS = 60.0
_FETCH_LOCKS = 64


class BlobCache:
    """Copies in a folder; the least recently used ones leave above `max_bytes`.

    A copy that a caller asked for in the last minute stays even then, so that the caller can open
    it. An open or mapped copy may leave: the kernel keeps its content until the reader is done.
    Thread-safe. Only this process uses the folder; an operator may delete it while it is stopped.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        *,
        setting: str = "HFMDS_DATA_DIR",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blobs = FolderBlobs(folder, setting=setting, durable=False)
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._fetch_locks = tuple(threading.Lock() for _ in range(_FETCH_LOCKS))
        # The time of the last use of each copy, oldest first. Copies of an earlier process come
        # before all others. Not an LRU of cachetools: those cannot spare recent entries.
        self._used_at: OrderedDict[Digest, float] = OrderedDict.fromkeys(
            self._blobs.digests(), clock() - _GRACE_SECONDS
        )
        self._bytes = sum(digest.size_bytes for digest in self._used_at)
        self._evict()

    def find(self, digest: Digest) -> Path | None:
        """Return the copy, if there is one."""
        with self._lock:
            if digest not in self._used_at:
                return None
            self._touch(digest)
        try:
            return self._blobs.local_path(digest)
        except NotFound:  # an operator deleted it
            self.forget(digest)
            return None

    def keep_bytes(self, data: bytes | memoryview) -> Path:
        """Copy content from memory."""
        return self._add(self._blobs.put_bytes(data))

    def keep_file(self, digest: Digest, path: Path) -> Path:
        """Make a file the copy; its content is checked by the caller. This moves the file."""
        self._blobs.put_file(digest, path)
        return self._add(digest)

    def digests(self) -> set[Digest]:
        """Return the digests of all copies."""
        with self._lock:
            return set(self._used_at)

    def forget(self, digest: Digest) -> None:
        """Delete a copy, if there is one."""
        with self._lock:
            self._remove(digest)

    def new_file(self) -> Path:
        """Return a path for a file to keep; a later start clears it away after a crash."""
        return self._blobs.new_file()

    def fetching(self, digest: Digest) -> threading.Lock:
        """Return the lock to hold while fetching a copy, so that each copy is fetched once."""
        return self._fetch_locks[int(digest.sha256[:4], 16) % _FETCH_LOCKS]

    def _add(self, digest: Digest) -> Path:
        with self._lock:
            self._touch(digest)
            self._evict()
        return self._blobs.local_path(digest)

    def _touch(self, digest: Digest) -> None:
        if digest not in self._used_at:
            self._bytes += digest.size_bytes
        self._used_at[digest] = self._clock()
        self._used_at.move_to_end(digest)

    def _evict(self) -> None:
        spared_since = self._clock() - _GRACE_SECONDS
        while self._bytes > self._max_bytes:
            digest, used_at = next(iter(self._used_at.items()))
            if used_at > spared_since:
                return
            self._remove(digest)

    def _remove(self, digest: Digest) -> None:
        if self._used_at.pop(digest, None) is not None:
            self._bytes -= digest.size_bytes
        self._blobs.delete(digest)
