"""Content by digest: the one place for weights, plans and synthetic batches.

`Blobs` is the interface. `FolderBlobs` keeps each blob as a file, `hfmds.storage.object_blobs` as
an object of an S3-compatible store, and `hfmds.storage.locations` opens either by URL. All methods
block: on an event loop, call them through `asyncio.to_thread`.
"""

from __future__ import annotations

import errno
import itertools
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hfmds.domain.digest import Digest, digest_of, digest_of_file
from hfmds.errors import CorruptData, InvalidInput, NotFound
from hfmds.storage.files import (
    full_disk_is_unavailable,
    make_data_folder,
    open_private,
    sync_file,
    sync_folder,
)

CHUNK_BYTES = 1024 * 1024
"""The size of a chunk, which is the content of one message."""

_ABANDONED_AFTER_SECONDS = 3600
_DELETED = "deleted-"  # begins the names of deleted files whose space is not free yet
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")
_NO_BLOB = Digest("0" * 64, 0)

_freeing = ThreadPoolExecutor(1, "free-space")


class Blobs(Protocol):
    """Immutable pieces of content, each named by its digest.

    A blob whose length differs from its digest's counts as absent, so sending it again repairs it.
    All methods are thread-safe. They may raise Unavailable when the storage is full or away.
    """

    def contains(self, digest: Digest) -> bool:
        """Return whether the blob is here and would survive a crash."""

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        """Keep the bytes, and return their digest.

        On return the blob would survive a crash. No reader ever sees half of it. Putting a blob
        that is here changes nothing.
        """

    def put_file(self, digest: Digest, path: Path) -> None:
        """Keep the content of a file, as `put_bytes` keeps bytes; this moves the file.

        The caller has compared the content with the digest. InvalidInput if the sizes differ.
        """

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        """Return the content in chunks, starting at `offset`.

        The call raises NotFound for an absent blob, and InvalidInput for an offset beyond its end.
        """

    def local_path(self, digest: Digest) -> Path:
        """Return a file with the content, to read or to map but never to change; or NotFound."""

    def delete(self, digest: Digest) -> None:
        """Delete the blob. Readers that have it open read on. An absent blob is no error.

        Its space is free soon after, or after a crash at the next start.
        """

    def digests(self) -> Iterator[Digest]:
        """Yield the digests of all blobs. This lists all of them, so call it rarely."""

    def forget_deleted(self) -> int:
        """Remove local copies of blobs that other machines deleted, and return their number.

        This lists all blobs, so call it rarely.
        """


def check_blobs(blobs: Blobs) -> None:
    """Raise an error if the storage of the blobs does not answer; cheap."""
    blobs.contains(_NO_BLOB)


def verify_blob(blobs: Blobs, digest: Digest) -> None:
    """Compare the blob's local file with its digest: NotFound, or CorruptData if it changed."""
    path = blobs.local_path(digest)
    actual = digest_of_file(path)
    if actual != digest:
        raise CorruptData(
            f"blob {digest} has changed: {path} now holds {actual}; delete it",
            public=f"blob {digest} has changed in its storage",
        )


class FolderBlobs:
    """Blobs as files in a folder, named by their SHA-256.

    A put writes a new blob to `incoming/`, syncs it and renames it into place. A deletion renames
    it back. All blobs are in one folder, because file systems find a name among many quickly and
    subfolders would need syncs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        setting: str = "HFMDS_BLOBS_URL or HFMDS_DATA_DIR",
        durable: bool = True,
    ) -> None:
        """Open or make the folder. A cache, which may lose content, need not be `durable`."""
        self._durable = durable
        self._folder = folder
        self._incoming = folder / "incoming"
        make_data_folder(self._incoming, setting)
        self._own = uuid.uuid4().hex  # other processes may put to the same folder
        self._numbers = itertools.count()
        self._clear_abandoned(now=time.time())

    def contains(self, digest: Digest) -> bool:
        if not self._is_here(digest):
            # A disk that is gone leaves an empty folder: its blobs are not absent, but away.
            self._incoming.stat()
            return False
        if self._durable:  # another thread may have renamed the file without syncing the folder yet
            sync_folder(self._folder)
        return True

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        digest = digest_of(data)
        if self.contains(digest):
            return digest
        path = self.new_file()
        with full_disk_is_unavailable(self._folder):
            try:
                with open_private(path, "wb") as file:
                    file.write(data)
                self._move_in(digest, path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return digest

    def put_file(self, digest: Digest, path: Path) -> None:
        require_size(digest, path)
        with full_disk_is_unavailable(self._folder):
            try:
                self._move_in(digest, path)
            except OSError as error:
                if error.errno != errno.EXDEV:  # the file is on another file system
                    raise
                self._copy_in(digest, path)
                path.unlink()

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        path = self.local_path(digest)
        require_offset(digest, offset)
        return self._chunks(digest, path, offset, chunk_bytes)

    def local_path(self, digest: Digest) -> Path:
        if not self._is_here(digest):
            raise missing_blob(digest)
        return self._path(digest)

    def delete(self, digest: Digest) -> None:
        """Delete the blob: hide it at once, and let another thread free its space.

        To free the space of a file takes milliseconds, during which callers hold transactions.
        """
        if not self._is_here(digest):  # the same hash with another size is no blob
            return
        hidden = self._incoming / f"{_DELETED}{self._own}-{next(self._numbers)}"
        with suppress(FileNotFoundError):  # another thread was faster
            # Not synced: if a crash undoes a deletion, the caller deletes the blob again.
            self._path(digest).rename(hidden)
            _freeing.submit(hidden.unlink, missing_ok=True)

    def digests(self) -> Iterator[Digest]:
        for path in self._folder.iterdir():
            if is_blob_name(path.name):  # not `incoming`, and not another place in this folder
                yield Digest(path.name, _size_bytes(path))

    def forget_deleted(self) -> int:
        return 0  # there are no copies

    def new_file(self) -> Path:
        """Return a path for a file to put; a later start clears it away after a crash."""
        return self._incoming / f"{self._own}-{next(self._numbers)}"

    def _is_here(self, digest: Digest) -> bool:
        try:
            return self._path(digest).stat().st_size == digest.size_bytes
        except FileNotFoundError:
            return False

    def _path(self, digest: Digest) -> Path:
        return self._folder / digest.sha256

    def _chunks(self, digest: Digest, path: Path, offset: int, chunk_bytes: int) -> Iterator[bytes]:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # deleted after `read`
            raise missing_blob(digest) from None
        with file:
            file.seek(offset)
            while chunk := file.read(chunk_bytes):
                yield chunk

    def _move_in(self, digest: Digest, path: Path) -> None:
        """Name a file as a blob. The order matters: sync the bytes, name them, sync the name."""
        if self._durable:
            sync_file(path)
        path.rename(self._path(digest))
        if self._durable:
            sync_folder(self._folder)

    def _copy_in(self, digest: Digest, path: Path) -> None:
        temporary = self.new_file()
        try:
            shutil.copyfile(path, temporary)
            self._move_in(digest, temporary)
        finally:
            temporary.unlink(missing_ok=True)

    def _clear_abandoned(self, now: float) -> None:
        """Remove deleted files, and the half-written files of killed processes.

        A live process never takes an hour to write a file.
        """
        for path in self._incoming.iterdir():
            with suppress(FileNotFoundError):  # another process may finish or remove it
                old = now - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS
                if old or path.name.startswith(_DELETED):
                    path.unlink()


def is_blob_name(name: str) -> bool:
    """Return whether a file of this name is a complete blob of a folder."""
    return _BLOB_NAME.fullmatch(name) is not None


def missing_blob(digest: Digest) -> NotFound:
    """Return the error of every storage for an absent blob."""
    return NotFound(f"blob {digest} is not here")


def require_size(digest: Digest, path: Path) -> None:
    """Raise InvalidInput if a file has not the size of the blob."""
    size_bytes = path.stat().st_size
    if size_bytes != digest.size_bytes:
        raise InvalidInput(f"blob {digest} cannot be made of a file of {size_bytes} bytes")


def require_offset(digest: Digest, offset: int) -> None:
    """Raise InvalidInput if an offset is outside the blob."""
    if not 0 <= offset <= digest.size_bytes:
        raise InvalidInput(f"blob {digest} has no offset {offset}")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # deleted since the listing
        return 0
