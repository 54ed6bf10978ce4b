"""Which uploads are under way: of a device in a pool the one it began last, and no more.

Bounded, whatever devices begin and never complete; who is forgotten here begins anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime

from synthesis_store.pools.pool_records import BatchKey

MOST_UPLOADS = 20_000
"""Twice as many as there are calls at once, so that those that have to go are not being sent."""


@dataclass(frozen=True, slots=True)
class Upload:
    """One that is not complete."""

    key: BatchKey
    begun_at: datetime
    mark: str = ""  # of what its last call may have put; empty: none is over


class Uploads:
    """Uploads that were begun at this replica and are not complete; thread-safe."""

    def __init__(self, most: int = MOST_UPLOADS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._under_way: OrderedDict[str, Upload] = OrderedDict()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, key: BatchKey, now: datetime) -> tuple[str, list[Upload]]:
        """Note an upload, or that it goes on; its mark then, and those to be discarded for it."""
        mark, discarded = "", list[Upload]()
        with self._lock:
            before = self._under_way.pop(uploader(key), None)
            if before is not None and before.key == key:
                mark = before.mark
            elif before is not None:
                discarded.append(before)
            self._under_way[uploader(key)] = Upload(key, now, mark)
            if len(self._under_way) > self._most:
                _, oldest = self._under_way.popitem(last=False)
                discarded.append(oldest)
        return mark, discarded

    def leave(self, key: BatchKey, mark: str) -> str:
        """Keep the mark of a call that is over, for whoever goes on with the upload or ends it.

        Returns the mark that nobody will come back for, if there is one: that of a call of the same
        upload, or this one if the upload is under way no more.
        """
        with self._lock:
            upload = self._under_way.get(uploader(key))
            if upload is None or upload.key != key:
                return mark
            self._under_way[uploader(key)] = replace(upload, mark=mark)
            return upload.mark

    def end(self, key: BatchKey) -> str:
        """Forget an upload that is complete, or discarded; the mark that was left with it."""
        with self._lock:
            upload = self._under_way.get(uploader(key))
            if upload is None or upload.key != key:
                return ""
            del self._under_way[uploader(key)]
            return upload.mark

    def of_device(self, device_id: str) -> list[BatchKey]:
        """Those of one device, in whatever pool."""
        with self._lock:
            every = [upload.key for upload in self._under_way.values()]
        return [key for key in every if key.device_id == device_id]

    def begun_before(self, moment: datetime) -> list[BatchKey]:
        """Those that nobody has gone on with since."""
        with self._lock:
            return [one.key for one in self._under_way.values() if one.begun_at < moment]


def uploader(key: BatchKey) -> str:
    """Whose partial upload it is; ids have no slash."""
    return f"{key.pool_id}/{key.device_id}"
