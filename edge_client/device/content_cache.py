"""Content that this device fetched or made, by digest; it fetches nothing twice."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeAlias

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import CorruptData, LimitExceeded, NotFound, Unavailable
from hfmds.storage.blobs import CHUNK_BYTES, FolderBlobs, verify_blob
from hfmds.storage.files import full_disk_is_unavailable, make_data_folder
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content

log = logging.getLogger(__name__)

Moved: TypeAlias = Callable[[int], None]
"""Gets the number of moved bytes; called in a thread."""

_ABANDONED_AFTER_SECONDS = 7 * 24 * 3600.0
_STALE_AFTER_SECONDS = 3600.0  # the same where room is needed
_MARKER = re.compile(r"[0-9a-f]{64}\.[0-9]+")


class ContentCache:
    """Blobs in a folder, each with an empty marker file whose time is its last use.

    Blocks: call it in a thread.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        received: Moved = lambda moved_bytes: None,
        sent: Moved = lambda moved_bytes: None,
    ) -> None:
        """`received` and `sent` get the bytes that cross the network, of broken transfers, too."""
        self._max_bytes = max_bytes
        self._uses = folder / "uses"
        make_data_folder(self._uses, setting="HFMDS_STATE_DIR")
        self.content = Content(
            _SentBlobs(folder / "blobs", sent),
            _ReceivingStaging(folder / "partial", max_bytes, received),
        )
        self.content.staging.purge(_ABANDONED_AFTER_SECONDS, time.time())

    def claim(self, digest: Digest) -> bool:
        """Note a use of the content; return True if it is here and intact."""
        self._touch(digest)
        try:
            verify_blob(self.content.blobs, digest)  # cheap, and flash cards lose bits
        except NotFound:
            return False
        except (CorruptData, OSError) as error:  # a card may refuse to read lost data
            log.warning("cached content is fetched again: %s", error)
            self.content.blobs.delete(digest)
            return False
        return True

    def make_room(self, needed_bytes: int, keep: Collection[Digest]) -> None:
        """Make room for a fetch; evict everything that is not in use if necessary.

        Raises LimitExceeded if other files fill the disk.
        """
        if self._free_bytes() >= needed_bytes:
            return
        log.warning("the disk is nearly full; cached content is dropped")
        self.evict(keep, max_bytes=0)
        self.content.staging.purge(_STALE_AFTER_SECONDS, time.time())
        free_bytes = self._free_bytes()
        if free_bytes < needed_bytes:
            raise LimitExceeded(
                f"the task needs {needed_bytes} bytes of the device's disk, {free_bytes} are left; "
                "free some, or set HFMDS_STATE_DIR to a larger disk"
            )

    def put(self, data: bytes) -> Digest:
        """Store content that this device made."""
        self.claim(digest_of(data))  # drops an altered copy
        return self.content.blobs.put_bytes(data)

    def path(self, digest: Digest) -> Path:
        """Return the file with the content; raises NotFound."""
        return self.content.blobs.local_path(digest)

    def remove(self, digest: Digest) -> None:
        """Delete content."""
        self.content.blobs.delete(digest)
        self._marker(digest).unlink(missing_ok=True)

    def evict(self, keep: Collection[Digest], max_bytes: int | None = None) -> None:
        """Shrink the cache to its size, least recently used first, except content in use.

        `max_bytes` replaces the cache's size.
        """
        max_bytes = self._max_bytes if max_bytes is None else max_bytes
        markers = [path for path in self._uses.iterdir() if _MARKER.fullmatch(path.name)]
        markers.sort(key=lambda marker: marker.stat().st_mtime_ns)
        contents = [_digest_in(marker.name) for marker in markers]
        total_bytes = sum(digest.size_bytes for digest in contents)
        for digest in contents:
            if total_bytes <= max_bytes:
                break
            if digest not in keep:
                self.remove(digest)
                total_bytes -= digest.size_bytes

    def _touch(self, digest: Digest) -> None:
        # Before the content arrives, so that all content has a time.
        marker = self._marker(digest)
        with full_disk_is_unavailable(self._uses):
            marker.touch()
        now = time.time_ns()  # finer than the kernel's stamp, so that uses have an order
        os.utime(marker, ns=(now, now))

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._uses).free

    def _marker(self, digest: Digest) -> Path:
        return self._uses / f"{digest.sha256}.{digest.size_bytes}"


def _digest_in(marker_name: str) -> Digest:
    sha256, _, size = marker_name.partition(".")
    return Digest(sha256, int(size))


class _SentBlobs(FolderBlobs):
    """Counts the bytes that are read, which are those that are sent."""

    def __init__(self, folder: Path, sent: Moved) -> None:
        super().__init__(folder, setting="HFMDS_STATE_DIR", durable=False)
        self._sent = sent

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        return self._counted(super().read(digest, offset, chunk_bytes))

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._sent(len(chunk))
            yield chunk


class _ReceivingStaging(Staging):
    """Counts the bytes that arrive; raises LimitExceeded on a full disk."""

    def __init__(self, folder: Path, max_bytes: int, received: Moved) -> None:
        super().__init__(folder, max_bytes, setting="HFMDS_STATE_DIR")
        self._received = received

    def append(self, owner: str, digest: Digest, offset: int, data: bytes | memoryview) -> int:
        self._received(len(data))
        try:
            return super().append(owner, digest, offset, data)
        except Unavailable as error:
            # Not Unavailable: repeating the transfer would move the bytes for nothing.
            raise LimitExceeded(
                "the device's disk is full; free some of it, or set HFMDS_STATE_DIR to a larger one"
            ) from error
