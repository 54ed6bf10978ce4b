"""Takes devices' updates: receives the bytes, checks them and counts the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from cachetools import LRUCache

from coordinator.devices.results import Results, Submission
from coordinator.devices.update_check import UpdateCheck
from coordinator.records.states import TaskState
from coordinator.records.tasks import Task
from coordinator.runs.content import RunContents
from hfmds.domain.digest import Digest
from hfmds.domain.tasks import UpdateReport, UploadState
from hfmds.errors import LimitExceeded
from hfmds.wire.chunks import Content, receive, upload_state

MAX_UPDATES = 8
"""How many different updates a device may upload for one task.

A device that was killed may compute another update after its restart. The updates that it does not
submit stay on disk until the run drops them.
"""

_CACHED_TASKS = 10_000


class Uploads:
    """Takes the updates of training tasks."""

    def __init__(self, results: Results, contents: RunContents, check: UpdateCheck) -> None:
        self._results = results
        self._contents = contents
        self._check = check
        self._quota = UploadQuota()

    async def submit(
        self,
        device_id: str,
        task_id: str,
        report: UpdateReport,
        offset: int,
        chunks: AsyncIterator[bytes],
    ) -> bool:
        """Take an update and count it; return True if it counted before.

        On return the update is durable. A broken upload can be resumed.
        """
        update = report.update
        task, content = await asyncio.to_thread(self._admit, device_id, task_id, update)
        if task.state is not TaskState.ACCEPTED:
            await receive(content, task_id, update, offset, chunks)
            await asyncio.to_thread(self._check.require_sound, task, update)
        submission = Submission(device_id, task_id, update, report, content.blobs)
        return await self._results.count(task, submission)

    async def query(self, device_id: str, task_id: str, update: Digest) -> UploadState:
        """Report how much of a task's update is here."""
        return await asyncio.to_thread(self._state, device_id, task_id, update)

    def _state(self, device_id: str, task_id: str, update: Digest) -> UploadState:
        task = self._results.require_open(device_id, task_id, "train")
        if task.state is TaskState.ACCEPTED:  # its bytes may be gone, together with its round
            return UploadState(update.size_bytes, complete=True)
        self._check.require_size(task, update)
        return upload_state(self._contents.of(task.key.run_id), task_id, update)

    def _admit(self, device_id: str, task_id: str, update: Digest) -> tuple[Task, Content]:
        """Require an open task, and an update that is neither too large nor one too many."""
        task = self._results.require_open(device_id, task_id, "train")
        if task.state is not TaskState.ACCEPTED:
            self._check.require_size(task, update)
            self._quota.take(task_id, update)
        return task, self._contents.of(task.key.run_id)


class UploadQuota:
    """Counts the updates of each task since this process started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updates: LRUCache[str, set[Digest]] = LRUCache(_CACHED_TASKS)

    def take(self, task_id: str, update: Digest) -> None:
        """Count an upload that begins or resumes; raise LimitExceeded if it is one too many."""
        with self._lock:
            updates = self._updates.setdefault(task_id, set())
            if update not in updates and len(updates) >= MAX_UPDATES:
                raise LimitExceeded(
                    f"task {task_id!r}: {MAX_UPDATES} different updates were uploaded and none "
                    "was accepted; submit one of them"
                )
            updates.add(update)
