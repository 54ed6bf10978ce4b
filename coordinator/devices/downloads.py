"""Sends devices the content that their tasks refer to: weights and plans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from coordinator.devices.plans import Plans
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.funnel import StageNotes
from coordinator.records.tasks import Task
from coordinator.runs.content import RunContents
from hfmds.domain.digest import Digest
from hfmds.domain.tasks import TaskStage
from hfmds.errors import NotAllowed
from hfmds.storage.blobs import Blobs
from hfmds.wire.chunks import outgoing


class Downloads:
    """Streams content to devices."""

    def __init__(
        self,
        tasks: TaskRecords,
        contents: RunContents,
        plans: Plans | None,
        stages: StageNotes,
    ) -> None:
        self._tasks = tasks
        self._contents = contents
        self._plans = plans
        self._stages = stages

    async def download(
        self, device_id: str, task_id: str, digest: Digest, offset: int
    ) -> AsyncIterator[bytes]:
        """Yield the content from an offset on, in chunks."""
        task, blobs = await asyncio.to_thread(self._find, device_id, task_id, digest)
        async for chunk in outgoing(blobs, digest, offset):
            yield chunk
        # A device that trains with a pool has the pool still to fetch.
        if digest == task.weights and not (task.key.kind == "train" and task.reference):
            self._stages.note(task_id, TaskStage.DOWNLOADED)

    def _find(self, device_id: str, task_id: str, digest: Digest) -> tuple[Task, Blobs]:
        """Return the device's task, and where the content is stored."""
        task = self._tasks.get(device_id, task_id)
        if digest == task.weights:
            return task, self._contents.of(task.key.run_id).blobs
        if self._plans and self._plans.contains(digest):  # a plan is no secret of its run
            return task, self._plans.blobs
        raise NotAllowed(f"task {task.task_id!r} does not refer to content {digest}")
