"""The fields of log lines about a task."""

from __future__ import annotations

from contextlib import AbstractContextManager

from coordinator.records.tasks import Task
from hfmds.service.monitoring.logs import log_context


def task_context(task: Task) -> AbstractContextManager[None]:
    """Add the fields of a task to the log lines inside the block."""
    return log_context(
        run=task.key.run_id,
        round=task.key.round_number,
        device=task.device_id,
        task=task.task_id,
    )
