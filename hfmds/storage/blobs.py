"""Content by digest: the one place where weights, plans and synthetic batches are kept.

`Blobs` is the seam; `FolderBlobs` keeps each blob as a file, `hfmds.storage.object_blobs` as an
object of an S3-compatible store, and `hfmds.storage.locations` opens either by URL. All are
synchronous: on an event loop, call them through `asyncio.to_thread`.
"""

from __future__ import annotations

import errno
import itertools
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hfmds.domain.digest import Digest, digest_of, digest_of_file
from hfmds.errors import CorruptData, InvalidInput, NotFound
from hfmds.storage.files import (
    forget_cached,
    full_disk_is_unavailable,
    make_data_folder,
    sync_file,
    sync_folder,
    write_file,
)
from hfmds.storage.spares import Spares

CHUNK_BYTES = 1024 * 1024
"""How much content travels in one message."""

_ABANDONED_AFTER_SECONDS = 3600
_RECYCLED_BYTES = 4 * CHUNK_BYTES  # at most; larger uploads come in parts, to files that grow
_NAME = re.compile(r"[0-9a-f]{64}")


class Blobs(Protocol):
    """Immutable pieces of content, each named by its digest.

    A put returns only when the content would survive a crash, and nobody ever sees half of it.
    Putting what is there already, and deleting what is not, change nothing. A blob whose length is
    not its digest's counts as absent, so that sending it again mends it. Every method may be called
    from any thread, and may raise Unavailable when the storage is full or away.
    """

    def contains(self, digest: Digest) -> bool:
        """Whether the blob is here; if it is being put, a crash may still undo that."""

    def look(self) -> None:
        """Raises if where the blobs are kept is away; cheap."""

    def confirm(self, digest: Digest) -> bool:
        """Whether the blob is here for good: to be asked before its sender is told so."""

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        """Keep the bytes and return their name."""

    def put_pieces(self, digest: Digest, pieces: Sequence[bytes | memoryview]) -> None:
        """Keep content in pieces, which the caller has checked against `digest`.

        For what is not here: whether it is, the caller has asked, too.
        """

    def put_file(self, digest: Digest, path: Path) -> None:
        """Keep the file's content, which the caller has checked against `digest`; moves the file.

        InvalidInput if its size is not the digest's.
        """

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        """The content from `offset` on, in chunks.

        Raises at the call, not at the first chunk: NotFound, or InvalidInput for an offset beyond
        the end.
        """

    def local_path(self, digest: Digest) -> Path:
        """A file with the content, to read or memory-map, never to change; NotFound."""

    def set_aside(self, digest: Digest) -> None:
        """Tell that the content is not read soon, so that it need not be held in memory."""

    def delete(self, digest: Digest) -> None:
        """Forget the blob."""

    def recycle(self, digests: Iterable[Digest]) -> None:
        """Forget blobs, and let the next ones have their room: for what comes and goes."""

    def free_recycled(self) -> None:
        """Give that room back: no more such blobs are to come, or not soon."""

    def forget_deleted(self) -> int:
        """Remove local copies of blobs that were deleted elsewhere; how many there were.

        Looks at every blob, so ask seldom.
        """

    def verify(self, digest: Digest) -> None:
        """Read the blob and compare: NotFound, or CorruptData if a byte has changed."""

    def digests(self) -> Iterator[Digest]:
        """All that is here; looks at every blob, so ask seldom."""


class FolderBlobs:
    """Blobs as files in `folder`, named by their SHA-256.

    A new blob is written to `incoming/`, synced, then renamed into place. All are in one folder: a
    new one for each would have to be synced, too, and file systems find a name among many quickly.
    """

    def __init__(
        self,
        folder: Path,
        *,
        setting: str = "HFMDS_BLOBS_URL or HFMDS_DATA_DIR",
        durable: bool = True,
    ) -> None:
        """Open or make the folder; a cache, which may lose content, need not be `durable`."""
        self._durable = durable
        self._folder = folder
        self._incoming = folder / "incoming"
        make_data_folder(self._incoming, setting)
        self._own = uuid.uuid4().hex  # others may put to the same folder
        self._numbers = itertools.count()
        self._spares = Spares(self._incoming, folder)
        self._clear_abandoned(now=time.time())

    def contains(self, digest: Digest) -> bool:
        try:
            return self._path(digest).stat().st_size == digest.size_bytes
        except FileNotFoundError:
            return False

    def look(self) -> None:
        # Not the folder itself, which stays as an empty one where a disk was that is gone.
        self._incoming.stat()

    def confirm(self, digest: Digest) -> bool:
        found = self.contains(digest)
        if found and self._durable:  # another thread may have renamed it, and synced nothing yet
            sync_folder(self._folder)
        return found

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        digest = digest_of(data)
        if self.confirm(digest):
            return digest
        self.put_pieces(digest, (data,))
        return digest

    def put_pieces(self, digest: Digest, pieces: Sequence[bytes | memoryview]) -> None:
        with full_disk_is_unavailable(self._folder):
            spare = self._spares.take()
            try:
                self._write(digest, pieces, spare or self.new_file())
            except FileNotFoundError:  # another process has forgotten our spares as it started
                if spare is None:
                    raise
                self._write(digest, pieces, self.new_file())

    def put_file(self, digest: Digest, path: Path) -> None:
        require_size(digest, path)
        if self.confirm(digest):
            path.unlink()
            return
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

    def _chunks(self, digest: Digest, path: Path, offset: int, chunk_bytes: int) -> Iterator[bytes]:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # deleted since `read`
            raise missing_blob(digest) from None
        with file:
            file.seek(offset)
            while chunk := file.read(chunk_bytes):
                yield chunk

    def local_path(self, digest: Digest) -> Path:
        if not self.contains(digest):
            raise missing_blob(digest)
        return self._path(digest)

    def set_aside(self, digest: Digest) -> None:
        if self._durable:  # else it may not be on disk yet, and would stay in memory anyway
            forget_cached(self._path(digest))

    def delete(self, digest: Digest) -> None:
        if self.contains(digest):  # the hash alone, with a wrong size, names nothing here
            # Not synced: a deletion that a crash undoes is merely done again.
            self._path(digest).unlink(missing_ok=True)

    def recycle(self, digests: Iterable[Digest]) -> None:
        small = []
        for digest in digests:
            if digest.size_bytes > _RECYCLED_BYTES:
                self.delete(digest)
            elif self.contains(digest):
                small.append(self._path(digest))
        self._spares.add(small)

    def free_recycled(self) -> None:
        self._spares.clear()

    def forget_deleted(self) -> int:
        return 0  # the blobs are here: there are no copies

    def verify(self, digest: Digest) -> None:
        path = self._path(digest)
        try:
            found = digest_of_file(path)
        except FileNotFoundError:
            raise missing_blob(digest) from None
        if found != digest:
            raise CorruptData(
                f"blob {digest} has changed: {path} now holds {found}; delete it",
                public=f"blob {digest} has changed where it is kept",
            )

    def digests(self) -> Iterator[Digest]:
        for path in self._folder.iterdir():
            if is_blob_name(path.name):  # else `incoming`, or another place below this one
                yield Digest(path.name, _size_bytes(path))

    def new_file(self) -> Path:
        """A name for a file that is to be put; it is cleared away if the process is killed."""
        return self._incoming / f"{self._own}-{next(self._numbers)}"

    def _path(self, digest: Digest) -> Path:
        return self._folder / digest.sha256

    def _write(self, digest: Digest, pieces: Sequence[bytes | memoryview], path: Path) -> None:
        """Put content by way of a file of our own, which may be there: it is written over."""
        try:
            write_file(path, pieces, synced=self._durable)
            self._give_name(digest, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _move_in(self, digest: Digest, path: Path) -> None:
        """The order matters: bytes on disk, then the name, then the name on disk."""
        if self._durable:
            sync_file(path)
        self._give_name(digest, path)

    def _give_name(self, digest: Digest, path: Path) -> None:
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
        """Remove what a killed process left; a live one never needs an hour to write a file."""
        for path in self._incoming.iterdir():
            if now - path.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                path.unlink(missing_ok=True)


def is_blob_name(name: str) -> bool:
    """Whether a file of this name is a blob of a folder, whole and in place."""
    return _NAME.fullmatch(name) is not None


def missing_blob(digest: Digest) -> NotFound:
    """What every blob store says of a blob it does not have."""
    return NotFound(f"blob {digest} is not here")


def require_size(digest: Digest, path: Path) -> None:
    """Refuse a file that cannot be the blob's content."""
    size_bytes = path.stat().st_size
    if size_bytes != digest.size_bytes:
        raise InvalidInput(f"blob {digest} cannot be made of a file of {size_bytes} bytes")


def require_offset(digest: Digest, offset: int) -> None:
    """Refuse to read from outside the blob."""
    if not 0 <= offset <= digest.size_bytes:
        raise InvalidInput(f"blob {digest} has no offset {offset}")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # deleted meanwhile
        return 0
