"""Content this device has fetched or made, by digest: what is here is never fetched again."""

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
"""Hears of bytes that were moved; called in a thread."""

_ABANDONED_AFTER_SECONDS = 7 * 24 * 3600.0
_STALE_AFTER_SECONDS = 3600.0  # the same where room is needed
_MARKER = re.compile(r"[0-9a-f]{64}\.[0-9]+")


class ContentCache:
    """Blobs in a folder, with an empty file per blob whose time says when it was last used.

    Synchronous: on the event loop, call through `asyncio.to_thread`.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        received: Moved = lambda moved_bytes: None,
        sent: Moved = lambda moved_bytes: None,
    ) -> None:
        """`received` and `sent` hear of bytes as they cross the network, whatever comes of them."""
        self._max_bytes = max_bytes
        self._uses = folder / "uses"
        make_data_folder(self._uses, setting="HFMDS_STATE_DIR")
        self.content = Content(
            _SentBlobs(folder / "blobs", sent),
            _ReceivingStaging(folder / "partial", max_bytes, received),
        )
        self.content.staging.purge(_ABANDONED_AFTER_SECONDS, time.time())

    def claim(self, digest: Digest) -> bool:
        """Note that the content is wanted now; true if it is here and intact."""
        self._touch(digest)
        try:
            verify_blob(self.content.blobs, digest)  # cheap; flash cards do forget
        except NotFound:
            return False
        except (CorruptData, OSError) as error:  # a card may also refuse to read what it forgot
            log.warning("cached content is fetched anew: %s", error)
            self.content.blobs.delete(digest)
            return False
        return True

    def make_room(self, needed_bytes: int, keep: Collection[Digest]) -> None:
        """See that so many bytes can be fetched, if need be in place of all that is not in use.

        LimitExceeded: the disk is full with other things.
        """
        if self._free_bytes() >= needed_bytes:
            return
        log.warning("the disk is nearly full; what can be fetched again is dropped")
        self.evict(keep, max_bytes=0)
        self.content.staging.purge(_STALE_AFTER_SECONDS, time.time())
        free_bytes = self._free_bytes()
        if free_bytes < needed_bytes:
            raise LimitExceeded(
                f"the task needs {needed_bytes} bytes of the device's disk, {free_bytes} are left; "
                "free some, or set HFMDS_STATE_DIR to a larger disk"
            )

    def put(self, data: bytes) -> Digest:
        """Keep content made here."""
        self.claim(digest_of(data))  # the same may be here, and altered: then it is put anew
        return self.content.blobs.put_bytes(data)

    def path(self, digest: Digest) -> Path:
        """The file with the content; NotFound."""
        return self.content.blobs.local_path(digest)

    def remove(self, digest: Digest) -> None:
        """Forget content that will not be needed again."""
        self.content.blobs.delete(digest)
        self._marker(digest).unlink(missing_ok=True)

    def evict(self, keep: Collection[Digest], max_bytes: int | None = None) -> None:
        """Bring the cache below its size, least recently used first, but for what is in use.

        To `max_bytes` instead, where room is needed for something else.
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
        # Before the content comes, so that nothing is here without a time.
        marker = self._marker(digest)
        with full_disk_is_unavailable(self._uses):
            marker.touch()
        now = time.time_ns()  # finer than the kernel's own stamp: uses must not tie
        os.utime(marker, ns=(now, now))

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._uses).free

    def _marker(self, digest: Digest) -> Path:
        return self._uses / f"{digest.sha256}.{digest.size_bytes}"


def _digest_in(marker_name: str) -> Digest:
    sha256, _, size = marker_name.partition(".")
    return Digest(sha256, int(size))


class _SentBlobs(FolderBlobs):
    """Counts what is read of them: only what is sent is."""

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
    """Counts what comes in. LimitExceeded where there is no room for it."""

    def __init__(self, folder: Path, max_bytes: int, received: Moved) -> None:
        super().__init__(folder, max_bytes, setting="HFMDS_STATE_DIR")
        self._received = received

    def append(self, owner: str, digest: Digest, offset: int, data: bytes | memoryview) -> int:
        self._received(len(data))
        try:
            return super().append(owner, digest, offset, data)
        except Unavailable as error:
            # This disk is full, not the sender away: to ask again and again would move the bytes
            # again and again, for nothing.
            raise LimitExceeded(
                "the device's disk is full; free some of it, or set HFMDS_STATE_DIR to a larger one"
            ) from error
