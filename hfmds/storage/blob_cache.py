"""Local copies of blobs that are kept elsewhere: to stream from, and to memory-map."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from hfmds.domain.digest import Digest
from hfmds.errors import NotFound
from hfmds.storage.blobs import FolderBlobs

_GRACE_SECONDS = 60.0
_FETCHES_AT_ONCE = 64


class BlobCache:
    """Copies in `folder`, the least recently used ones leaving when they pass `max_bytes`.

    A copy that was asked for in the last minute stays even then, so that whoever asked can open
    it. Once it is open or mapped it may leave: the kernel keeps the content until it is let go.
    Thread-safe; the folder is this process's alone, and may be deleted while it is stopped.
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
        self._fetching = tuple(threading.Lock() for _ in range(_FETCHES_AT_ONCE))
        # When each copy was last asked for, the longest ago first; those of an earlier process
        # come first of all.
        self._used_at: OrderedDict[Digest, float] = OrderedDict.fromkeys(
            self._blobs.digests(), clock() - _GRACE_SECONDS
        )
        self._bytes = sum(digest.size_bytes for digest in self._used_at)
        self._evict()

    def find(self, digest: Digest) -> Path | None:
        """The copy, if there is one."""
        with self._lock:
            if digest not in self._used_at:
                return None
            self._touch(digest)
        try:
            return self._blobs.local_path(digest)
        except NotFound:  # somebody tidied the folder
            self.forget(digest)
            return None

    def keep_bytes(self, data: bytes | memoryview) -> Path:
        """Make a copy of content in memory."""
        return self._kept(self._blobs.put_bytes(data))

    def keep_pieces(self, digest: Digest, pieces: Sequence[bytes | memoryview]) -> Path:
        """Make a copy of content in pieces, which the caller has checked."""
        self._blobs.put_pieces(digest, pieces)
        return self._kept(digest)

    def keep_file(self, digest: Digest, path: Path) -> Path:
        """Make a file, whose content the caller has checked, the copy; moves it."""
        self._blobs.put_file(digest, path)
        return self._kept(digest)

    def digests(self) -> set[Digest]:
        """All copies."""
        with self._lock:
            return set(self._used_at)

    def forget(self, digest: Digest) -> None:
        """Remove a copy, if there is one."""
        with self._lock:
            self._remove(digest)

    def new_file(self) -> Path:
        """A name for a file that is to become a copy; it is cleared away if we are killed."""
        return self._blobs.new_file()

    def fetching(self, digest: Digest) -> threading.Lock:
        """To hold while making a copy, so that others who want the same one wait for it."""
        return self._fetching[int(digest.sha256[:4], 16) % len(self._fetching)]

    def _kept(self, digest: Digest) -> Path:
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
