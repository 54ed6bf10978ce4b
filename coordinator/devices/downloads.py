"""Sends devices the content that their tasks refer to: weights and plans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from coordinator.devices.plans import Plans
from coordinator.records.device_tasks import TaskRecords
from coordinator.runs.content import RunContents
from hfmds.domain.digest import Digest
from hfmds.errors import NotAllowed
from hfmds.storage.blobs import Blobs
from hfmds.wire.chunks import outgoing


class Downloads:
    """Streams content to devices."""

    def __init__(self, tasks: TaskRecords, contents: RunContents, plans: Plans | None) -> None:
        self._tasks = tasks
        self._contents = contents
        self._plans = plans

    async def download(
        self, device_id: str, task_id: str, digest: Digest, offset: int
    ) -> AsyncIterator[bytes]:
        """Yield the content from an offset on, in chunks."""
        blobs = await asyncio.to_thread(self._find, device_id, task_id, digest)
        async for chunk in outgoing(blobs, digest, offset):
            yield chunk

    def _find(self, device_id: str, task_id: str, digest: Digest) -> Blobs:
        """Return where the content of a device's task is stored."""
        task = self._tasks.get(device_id, task_id)
        if digest == task.weights:
            return self._contents.of(task.key.run_id).blobs
        if self._plans and self._plans.contains(digest):  # a plan is no secret of its run
            return self._plans.blobs
        raise NotAllowed(f"task {task.task_id!r} does not refer to content {digest}")
