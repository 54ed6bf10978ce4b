"""The uploads that devices have begun and not completed.

A device has one open upload in a pool. The number of open uploads is bounded, so devices that
begin uploads and never complete them cannot fill the disk.
"""

from __future__ import annotations

import threading

from cachetools import LRUCache

from synthesis_store.pools.pool_records import BatchKey

MAX_UPLOADS = 20_000
"""Twice the number of concurrent calls, so that no upload that moves has to go."""


class OpenUploads:
    """The open uploads of this replica. Thread-safe."""

    def __init__(self, max_uploads: int = MAX_UPLOADS) -> None:
        self._lock = threading.Lock()
        self._uploads: LRUCache[str, BatchKey] = LRUCache(max_uploads)  # by `uploader`

    def __len__(self) -> int:
        return len(self._uploads)

    def begin(self, key: BatchKey) -> list[BatchKey]:
        """Remember an upload that begins or goes on.

        Returns the uploads that the caller must discard: an earlier one of the same device in the
        same pool, or the least recently used one of all.
        """
        with self._lock:
            discarded = []
            earlier = self._uploads.pop(uploader(key), key)
            if earlier != key:
                discarded.append(earlier)
            elif len(self._uploads) == self._uploads.maxsize:
                discarded.append(self._uploads.popitem()[1])
            self._uploads[uploader(key)] = key
            return discarded

    def end(self, key: BatchKey) -> None:
        """Forget an upload that is complete or discarded."""
        with self._lock:
            if self._uploads.get(uploader(key)) == key:
                del self._uploads[uploader(key)]

    def of_device(self, device_id: str) -> list[BatchKey]:
        """Return the open uploads of one device in all pools."""
        with self._lock:
            return [key for key in self._uploads.values() if key.device_id == device_id]


def uploader(key: BatchKey) -> str:
    """Name the owner of a partial upload. Ids have no slash."""
    return f"{key.pool_id}/{key.device_id}"
