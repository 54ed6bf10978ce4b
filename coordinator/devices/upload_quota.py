"""How many different updates a device may send for one task.

A device that was killed may come to another result when it starts again. One that sends ever new
ones would fill the disk, for what it does not hand in is dropped only when its run ends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from hfmds.domain.digest import Digest
from hfmds.errors import LimitExceeded

MOST_UPDATES = 8
_REMEMBERED = 10_000  # tasks with uploads, the last ones


class UploadQuota:
    """Counts them, since this process was started; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updates: OrderedDict[str, set[Digest]] = OrderedDict()

    def take(self, task_id: str, update: Digest) -> None:
        """The task's device begins, or goes on, to send this; LimitExceeded if it is one more."""
        with self._lock:
            updates = self._updates.setdefault(task_id, set())
            self._updates.move_to_end(task_id)
            if update not in updates and len(updates) >= MOST_UPDATES:
                raise LimitExceeded(
                    f"task {task_id!r}: {MOST_UPDATES} different updates were sent and none handed "
                    "in; submit one of them"
                )
            updates.add(update)
            if len(self._updates) > _REMEMBERED:
                self._updates.popitem(last=False)
