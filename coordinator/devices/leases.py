"""Keeps and ends the leases of devices: renewals, failures, goodbyes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from coordinator.devices.registry import Registry
from coordinator.monitoring.log_fields import task_context
from coordinator.monitoring.metrics import Metrics
from coordinator.records.device_tasks import TaskRecords
from coordinator.replicas.notices import Notices, Topic
from hfmds.domain.tasks import FailureCause, TaskStage

log = logging.getLogger(__name__)


class Leases:
    """Answers a device about the task that it holds."""

    def __init__(
        self,
        tasks: TaskRecords,
        registry: Registry,
        metrics: Metrics,
        notices: Notices,
        clock: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._registry = registry
        self._metrics = metrics
        self._notices = notices
        self._clock = clock

    async def renew(self, device_id: str, task_id: str, stage: TaskStage | None = None) -> float:
        """Extend the lease of a task and record its stage; return the lease's seconds."""
        renew, now = self._tasks.renew, self._clock()
        with self._metrics.counting_late():
            task = await asyncio.to_thread(renew, device_id, task_id, now, stage)
        if stage is not None:
            self._metrics.funnel.reached(task.key.kind, task.stage, stage)
        self._registry.note_call(device_id)
        return task.lease_seconds

    async def report_failure(
        self,
        device_id: str,
        task_id: str,
        reason: str,
        cause: FailureCause = FailureCause.UNEXPECTED,
    ) -> None:
        """Let a device give its task up."""
        task = await asyncio.to_thread(self._tasks.get, device_id, task_id)
        now = self._clock()
        failure = await asyncio.to_thread(self._tasks.fail, device_id, task_id, reason, cause, now)
        self._registry.note_call(device_id)
        if failure is not None:
            with task_context(task):
                log.warning("device gave its task up: %s", reason)
            self._metrics.funnel.failed(task.key.kind, failure)
            self._notices.post(Topic.RUN, task.key.run_id)

    async def leave(self, device_id: str) -> None:
        """Let a device stop: its lease ends and its task waits for its return."""
        run_ids = await asyncio.to_thread(self._tasks.expire_leases, device_id)
        self._registry.note_goodbye(device_id)
        for run_id in run_ids:
            self._notices.post(Topic.RUN, run_id)
