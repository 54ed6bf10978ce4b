"""Tasks as the devices see them: lease, renew, hand in, give up.

Each method is one transaction: a `kill -9` falls before it or after it, never inside.
`coordinator.records.acceptance` decides which results count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import Engine, bindparam, select, update

from coordinator.records.acceptance import (
    Acceptance,
    HandedIn,
    accept_result,
    own_task,
    require_pending,
)
from coordinator.records.drain import is_drained
from coordinator.records.states import TaskState
from coordinator.records.tables import RunRow, TaskRow
from coordinator.records.tasks import (
    PENDING_NAMES,
    SELECT_TASKS,
    Task,
    append_task_event,
    lease_task,
    move_task,
    read_tasks,
    update_task,
)
from hfmds.domain.administration.events import EventKind
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import FailureCause, TaskStage
from hfmds.errors import HfmdsError
from hfmds.storage.database import read_connection, write_connection

_OFFERED = (
    SELECT_TASKS.where(
        TaskRow.device_id.in_(bindparam("devices", expanding=True)),
        TaskRow.state.in_(PENDING_NAMES),
        RunRow.state == RunState.RUNNING.name,
    )
    # LEASED sorts after ASSIGNED: a device goes on with the task that it holds.
    .order_by(TaskRow.state.desc(), TaskRow.assigned_at, TaskRow.task_id)
)


class TaskRecords:
    """The coordinator's records of its tasks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def lease_each(self, asking: Sequence[tuple[str, str]], now: float) -> list[Task | None]:
        """Lease the next task of each device: the task that it holds, else the oldest assigned.

        `asking` has device ids and run ids; with an empty run id, a task of any running run will
        do. While the coordinator is drained, a device gets only a task that it holds.
        """
        devices = {device_id for device_id, _ in asking}
        # Most check-ins find nothing, so look without the write lock first.
        with read_connection(self._engine) as connection:
            if not any(_next_tasks(read_tasks(connection, _OFFERED, devices=devices), asking)):
                return [None] * len(asking)
        with write_connection(self._engine) as connection:
            tasks = read_tasks(connection, _OFFERED, devices=devices)
            if is_drained(connection):
                tasks = [task for task in tasks if task.state is TaskState.LEASED]
            next_tasks = _next_tasks(tasks, asking)
            return [task and lease_task(connection, task, now) for task in next_tasks]

    def renew(
        self, device_id: str, task_id: str, now: float, stage: TaskStage | None = None
    ) -> Task:
        """Extend a lease and write the stage of its task; return the task from before."""
        with write_connection(self._engine) as connection:
            task = own_task(connection, device_id, task_id)
            require_pending(task)
            update_task(
                connection,
                task_id,
                lease_expires_at=now + task.lease_seconds,
                stage=int(task.stage if stage is None else max(stage, task.stage)),
            )
            return task

    def expire_leases(self, device_id: str) -> set[str]:
        """Expire the leases of a device that has gone, and return the ids of their runs."""
        held = (TaskRow.device_id == device_id, TaskRow.state == TaskState.LEASED.name)
        with write_connection(self._engine) as connection:
            runs = set(connection.scalars(select(TaskRow.run_id).where(*held)))
            connection.execute(update(TaskRow).where(*held).values(lease_expires_at=0.0))
            return runs

    def get(self, device_id: str, task_id: str) -> Task:
        """Return a device's own task."""
        with read_connection(self._engine) as connection:
            return own_task(connection, device_id, task_id)

    def get_pending(self, device_id: str, task_id: str) -> Task:
        """Return a device's own task, which must not be over.

        An accepted task passes: the coordinator answers a repeated upload as the first one.
        """
        task = self.get(device_id, task_id)
        if task.state is not TaskState.ACCEPTED:
            require_pending(task)
        return task

    def accept_each(self, results: Iterable[HandedIn], now: float) -> list[Acceptance | HfmdsError]:
        """Count the results in their order, each once; an error says why one does not count."""
        with write_connection(self._engine) as connection:
            return [accept_result(connection, result, now) for result in results]

    def refuse(self, device_id: str, task_id: str, reason: str, now: float) -> Task:
        """Record why the coordinator refused a result; return the task from before.

        A task keeps only its first refusal.
        """
        with write_connection(self._engine) as connection:
            task = own_task(connection, device_id, task_id)
            if not task.refusal:
                stage = int(TaskStage.UPLOADED)
                update_task(connection, task_id, refusal=reason, stage=stage)
                append_task_event(connection, task, EventKind.TASK_REFUSED, now, reason=reason)
            return task

    def fail(
        self, device_id: str, task_id: str, reason: str, cause: FailureCause, now: float
    ) -> FailureCause | None:
        """Record that the device gave the task up, and return the cause; None if repeated."""
        with write_connection(self._engine) as connection:
            task = own_task(connection, device_id, task_id)
            if task.state is TaskState.FAILED:
                return None
            require_pending(task)
            if task.refusal:  # the coordinator knows this cause better than the device
                cause = FailureCause.REFUSED
            move_task(
                connection,
                task,
                TaskState.FAILED,
                failure=reason,
                failure_cause=cause.name,
                failures=task.failures + 1,
            )
            details = {"cause": cause.value, "reason": reason}
            append_task_event(connection, task, EventKind.TASK_FAILED, now, **details)
            return cause


def _next_tasks(tasks: Iterable[Task], asking: Iterable[tuple[str, str]]) -> list[Task | None]:
    """Return the first task of each device that asks, of the run that it names, if any."""
    of_device = defaultdict[str, list[Task]](list)
    for task in tasks:
        of_device[task.device_id].append(task)
    return [
        next((task for task in of_device[device_id] if run_id in ("", task.key.run_id)), None)
        for device_id, run_id in asking
    ]
