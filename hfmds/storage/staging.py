"""Partial uploads, kept on disk so that their senders can resume them.

An upload is named by its owner (for example a task id) and by the digest that it announces. Nothing
here is trusted before `commit` has compared the bytes with that digest. Staging hashes the bytes as
they arrive, and reads only those again that an earlier process received.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cachetools import LRUCache

from hfmds.domain.digest import Digest, digest_of_file
from hfmds.errors import CorruptData, InvalidInput, LimitExceeded, WrongState
from hfmds.storage.blobs import Blobs
from hfmds.storage.files import full_disk_is_unavailable, make_data_folder, open_private

if TYPE_CHECKING:
    from hashlib import _Hash

_LOCKS = 64
_KNOWN_HASHES = 10_000  # of more uploads than this, `commit` reads some again


class Staging:
    """Partial uploads in a folder, each announced with at most `max_bytes`.

    The length of a partial file is the offset at which its sender resumes, so a killed process
    loses nothing it received. Bytes are only added at the end, by one writer at a time, so the hash
    of the added bytes is the hash of the file. Thread-safe; only this process uses the folder.
    """

    def __init__(self, folder: Path, max_bytes: int, *, setting: str = "HFMDS_DATA_DIR") -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        make_data_folder(folder, setting)
        self._file_locks = tuple(threading.Lock() for _ in range(_LOCKS))
        self._lock = threading.Lock()
        # The hashes so far, of uploads that began at offset 0 in this process.
        self._hashes = LRUCache[Path, "_Hash"](_KNOWN_HASHES)

    def offset(self, owner: str, digest: Digest) -> int:
        """Return how many bytes are here: the offset at which the sender resumes."""
        return _size_bytes(self._path(owner, digest))

    def append(self, owner: str, digest: Digest, offset: int, data: bytes | memoryview) -> int:
        """Add the next bytes, and return the offset after them.

        LimitExceeded if the announced size is above the limit, WrongState if `offset` is not where
        the upload stands, InvalidInput if there are more bytes than announced.
        """
        if digest.size_bytes > self._max_bytes:
            raise LimitExceeded(
                f"upload {digest}: {digest.size_bytes} bytes are announced, "
                f"the limit is {self._max_bytes}"
            )
        path, end = self._path(owner, digest), offset + len(data)
        with self._lock_of(path):
            expected = _size_bytes(path)
            if offset != expected:
                raise WrongState(f"upload {digest}: offset {offset} was sent, {expected} is next")
            if end > digest.size_bytes:
                raise InvalidInput(
                    f"upload {digest}: {end} bytes were sent, {digest.size_bytes} are announced"
                )
            # Taken out first, so that a write that fails in the middle leaves no wrong hash.
            known = self._take_hash(path)
            sha256 = known if offset else hashlib.sha256()
            with full_disk_is_unavailable(self._folder), open_private(path, "ab") as file:
                file.write(data)
            if sha256 is not None:
                sha256.update(data)
                with self._lock:
                    self._hashes[path] = sha256
        return end

    def commit(self, owner: str, digest: Digest, blobs: Blobs) -> None:
        """Check the complete upload and move it into `blobs`; repeating this changes nothing.

        WrongState if bytes are missing. CorruptData if they do not match the digest; then the
        upload starts again at 0.
        """
        have = self.offset(owner, digest)
        if have != digest.size_bytes:
            if blobs.contains(digest):  # an earlier commit, or another upload, put it there
                self.discard(owner, digest)
                return
            raise WrongState(
                f"upload {digest}: {have} of {digest.size_bytes} bytes are here; "
                f"send the rest from offset {have}"
            )
        path = self._path(owner, digest)
        if not have:
            path.touch()  # no byte of an empty upload has made its file
        try:
            # A complete upload takes no more bytes, so the hash is that of the file.
            sha256 = self._take_hash(path)
            actual = Digest(sha256.hexdigest(), have) if sha256 else digest_of_file(path)
            if actual == digest:
                blobs.put_file(digest, path)
        except FileNotFoundError:
            # Another commit of the same upload was faster: it put the blob, or found it corrupt.
            self.commit(owner, digest, blobs)
            return
        if actual != digest:
            self.discard(owner, digest)
            raise CorruptData(
                f"upload {digest}: the bytes that came are {actual}; send it again from offset 0"
            )

    def discard(self, owner: str, digest: Digest) -> None:
        """Delete a partial upload."""
        path = self._path(owner, digest)
        with self._lock_of(path):
            self._take_hash(path)
            path.unlink(missing_ok=True)

    def purge(self, older_than_seconds: float, now: float) -> int:
        """Delete uploads that received no byte for so long before `now`; return their number."""
        removed = 0
        for path in self._folder.glob("*.part"):
            # Another thread may complete or discard it, or add its next bytes.
            with self._lock_of(path), suppress(FileNotFoundError):
                if now - path.stat().st_mtime > older_than_seconds:
                    self._take_hash(path)
                    path.unlink()
                    removed += 1
        return removed

    def _lock_of(self, path: Path) -> threading.Lock:
        """Return the lock for changes to an upload's file."""
        return self._file_locks[int(path.name[:4], 16) % _LOCKS]

    def _take_hash(self, path: Path) -> _Hash | None:
        with self._lock:
            return self._hashes.pop(path, None)

    def _path(self, owner: str, digest: Digest) -> Path:
        # Hashed, because a peer may send the owner's name and must not choose a path.
        key = f"{digest.sha256}/{digest.size_bytes}/{owner}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.part"


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
