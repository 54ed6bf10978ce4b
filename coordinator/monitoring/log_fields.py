"""What log lines about a task say of it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from coordinator.records.tasks import Task
from hfmds.service.monitoring.logs import log_context


def task_context(task: Task) -> AbstractContextManager[None]:
    """Around lines that are about this task."""
    return log_context(
        run=task.key.run_id,
        round=task.key.round_number,
        device=task.device_id,
        task=task.task_id,
    )
