"""Uploads that are not complete yet, kept on disk so that they can be resumed.

An upload is known by its owner (for example a task id) and the digest it announces. Nothing here
is trusted before `commit` has compared the bytes with that digest. They are hashed as they come;
only what an earlier process has taken is read again. What comes at once is never partial: `take`
compares it in memory, and no file is made of it here.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hfmds.domain.digest import Digest, digest_of_file
from hfmds.errors import (
    CorruptData,
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    Unavailable,
    WrongState,
)
from hfmds.storage.blobs import Blobs
from hfmds.storage.files import full_disk_is_unavailable, make_data_folder, write_at

if TYPE_CHECKING:
    from hashlib import _Hash

_WRITES_AT_ONCE = 64
_REMEMBERED = 10_000  # broken uploads whose hash so far is known; of more, the bytes are read again


class Staging:
    """Partial uploads in `folder`, none announced larger than `max_bytes`.

    The length of a partial file is the offset to go on from, so a killed process loses nothing it
    took. Bytes are only ever added at the end, by one writer at a time, so the hash of what was
    added is the file's. Thread-safe; the folder is this process's alone.
    """

    def __init__(self, folder: Path, max_bytes: int, *, setting: str = "HFMDS_DATA_DIR") -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        make_data_folder(folder, setting)
        self._writing = tuple(threading.Lock() for _ in range(_WRITES_AT_ONCE))
        self._lock = threading.Lock()
        self._hashes: OrderedDict[Path, _Hash] = OrderedDict()  # of uploads that began at 0 here

    def offset(self, owner: str, digest: Digest) -> int:
        """How many bytes are here already: where the sender goes on."""
        return _size_bytes(self._path(owner, digest))

    def append(self, owner: str, digest: Digest, offset: int, *pieces: bytes | memoryview) -> int:
        """Take the next bytes, one piece behind the other, and return the offset after them.

        LimitExceeded if the announced size is above the limit, WrongState if `offset` is not where
        the upload stands, InvalidInput if there are more bytes than announced.
        """
        self._require_allowed(digest)
        path, end = self._path(owner, digest), offset + sum(map(len, pieces))
        with self._lock_of(path):
            _require_next(digest, offset, _size_bytes(path))
            if end > digest.size_bytes:
                raise InvalidInput(
                    f"upload {digest}: {end} bytes were sent, {digest.size_bytes} are announced"
                )
            # Taken out, so that a write that fails in the middle leaves no hash behind.
            known = self._take_hash(path)
            sha256 = known if offset else hashlib.sha256()
            with full_disk_is_unavailable(self._folder):
                # Not appended: a writer that lost the race must not shift what comes after it.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    write_at(descriptor, offset, pieces)
                finally:
                    os.close(descriptor)
            if sha256 is not None:
                for piece in pieces:
                    sha256.update(piece)
                self._remember_hash(path, sha256)
        return end

    def commit(self, owner: str, digest: Digest, blobs: Blobs) -> None:
        """Check the complete upload and move it into `blobs`; repeating it changes nothing.

        WrongState if bytes are missing; CorruptData, and the upload starts again at 0, if they do
        not match the digest.
        """
        have = self.offset(owner, digest)
        if have != digest.size_bytes:
            if blobs.confirm(digest):  # by a commit before, or by another upload
                self.discard(owner, digest)
                return
            raise WrongState(
                f"upload {digest}: {have} of {digest.size_bytes} bytes are here; "
                f"send the rest from offset {have}"
            )
        path = self._path(owner, digest)
        if not have:
            path.touch()  # an empty upload has had no byte to make its file
        try:
            # Complete, it takes no more bytes: what was hashed is what is there.
            sha256 = self._take_hash(path)
            found = Digest(sha256.hexdigest(), have) if sha256 else digest_of_file(path)
            if found == digest:
                blobs.put_file(digest, path)
        except FileNotFoundError:
            # Another commit of the same upload was quicker; it put the blob, or found it corrupt.
            self.commit(owner, digest, blobs)
            return
        if found != digest:
            self.discard(owner, digest)
            raise _corrupt(digest, found)

    def take(
        self, owner: str, digest: Digest, pieces: Sequence[bytes | memoryview], blobs: Blobs
    ) -> None:
        """Check an upload all of which has come, and put it into `blobs`, which lack it.

        As `append` at 0 and `commit`, and with their errors, but with a third less questions to the
        system: after each of them the thread has to wait for the interpreter.
        """
        self._require_allowed(digest)
        _require_next(digest, 0, self.offset(owner, digest))
        sha256 = hashlib.sha256()
        for piece in pieces:
            sha256.update(piece)
        found = Digest(sha256.hexdigest(), sum(map(len, pieces)))
        if found != digest:
            raise _corrupt(digest, found)
        try:
            blobs.put_pieces(digest, pieces)
        except Unavailable:
            with suppress(HfmdsError):  # the first error is the one to tell
                self.append(owner, digest, 0, *pieces)
            raise

    def discard(self, owner: str, digest: Digest) -> None:
        """Forget a partial upload."""
        path = self._path(owner, digest)
        with self._lock_of(path):
            self._take_hash(path)
            path.unlink(missing_ok=True)

    def purge(self, older_than_seconds: float, now: float) -> int:
        """Remove uploads that got no byte for so long before `now` (Unix time); their number."""
        removed = 0
        for path in self._folder.glob("*.part"):
            # It may be completed or discarded meanwhile, or get its next bytes.
            with self._lock_of(path), suppress(FileNotFoundError):
                if now - path.stat().st_mtime > older_than_seconds:
                    self._take_hash(path)
                    path.unlink()
                    removed += 1
        return removed

    def _require_allowed(self, digest: Digest) -> None:
        if digest.size_bytes > self._max_bytes:
            raise LimitExceeded(
                f"upload {digest}: {digest.size_bytes} bytes are announced, "
                f"the limit is {self._max_bytes}"
            )

    def _lock_of(self, path: Path) -> threading.Lock:
        """To hold while an upload's file is changed."""
        return self._writing[int(path.name[:4], 16) % _WRITES_AT_ONCE]

    def _take_hash(self, path: Path) -> _Hash | None:
        with self._lock:
            return self._hashes.pop(path, None)

    def _remember_hash(self, path: Path, sha256: _Hash) -> None:
        with self._lock:
            self._hashes[path] = sha256
            if len(self._hashes) > _REMEMBERED:
                self._hashes.popitem(last=False)

    def _path(self, owner: str, digest: Digest) -> Path:
        # Hashed: an owner's name may come from a peer and must not choose a path.
        key = f"{digest.sha256}/{digest.size_bytes}/{owner}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.part"


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _require_next(digest: Digest, offset: int, expected: int) -> None:
    if offset != expected:
        raise WrongState(f"upload {digest}: offset {offset} was sent, {expected} is next")


def _corrupt(digest: Digest, found: Digest) -> CorruptData:
    return CorruptData(
        f"upload {digest}: the bytes that came are {found}; send it again from offset 0"
    )
