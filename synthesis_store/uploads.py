"""Which uploads are under way: of a device in a pool the one it began last, and no more.

Bounded, whatever devices begin and never complete; who is forgotten here begins anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import datetime

from synthesis_store.pool_records import BatchKey

MOST_UPLOADS = 20_000
"""Twice as many as there are calls at once, so that those that have to go are not being sent."""


class Uploads:
    """Uploads that were begun at this replica and are not complete; thread-safe."""

    def __init__(self, most: int = MOST_UPLOADS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._under_way: OrderedDict[str, tuple[BatchKey, datetime]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, key: BatchKey, now: datetime) -> list[BatchKey]:
        """Note an upload, or that it goes on; those that are to be discarded for it."""
        discarded: list[BatchKey] = []
        with self._lock:
            before = self._under_way.pop(uploader(key), None)
            if before is not None and before[0] != key:
                discarded.append(before[0])
            self._under_way[uploader(key)] = key, now
            if len(self._under_way) > self._most:
                _, (oldest, _) = self._under_way.popitem(last=False)
                discarded.append(oldest)
        return discarded

    def end(self, key: BatchKey) -> None:
        """Forget an upload that is complete, or discarded."""
        with self._lock:
            if self._under_way.get(uploader(key), (None,))[0] == key:
                del self._under_way[uploader(key)]

    def of_device(self, device_id: str) -> list[BatchKey]:
        """Those of one device, in whatever pool."""
        with self._lock:
            return [key for key, _ in self._under_way.values() if key.device_id == device_id]

    def begun_before(self, moment: datetime) -> list[BatchKey]:
        """Those that nobody has gone on with since."""
        with self._lock:
            return [key for key, begun_at in self._under_way.values() if begun_at < moment]


def uploader(key: BatchKey) -> str:
    """Whose partial upload it is; ids have no slash."""
    return f"{key.pool_id}/{key.device_id}"
