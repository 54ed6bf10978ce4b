"""Tasks: how to read them, and the only ways to change them.

The functions run inside a transaction of their caller. `device_tasks` and `phases` make these
transactions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    bindparam,
    insert,
    select,
    update,
)

from coordinator.records.events import append_to_log, run_uid_of
from coordinator.records.states import PENDING, TASK_TRANSITIONS, TaskState
from coordinator.records.tables import PhaseRow, RunRow, TaskRow
from hfmds.domain.administration.events import EventKind
from hfmds.domain.digest import Digest
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import LateReason, TaskStage
from hfmds.state_machine import require_transition

PENDING_NAMES = tuple(state.name for state in PENDING)
"""The names of the states in which the coordinator still wants a task's result."""

SELECT_TASKS: Select[*tuple[Any, ...]] = (
    select(
        TaskRow.task_id,
        TaskRow.run_id,
        TaskRow.round_number,
        TaskRow.kind,
        TaskRow.device_id,
        TaskRow.state,
        TaskRow.lease_expires_at,
        TaskRow.counted_round,
        TaskRow.over_reason,
        TaskRow.result_sha256,
        TaskRow.report,
        TaskRow.refusal,
        TaskRow.failures,
        TaskRow.stage,
        PhaseRow.lease_seconds,
        PhaseRow.weights_sha256,
        PhaseRow.weights_bytes,
        PhaseRow.reference,
        PhaseRow.asynchronous,
        PhaseRow.goal,
        RunRow.nonce,
    )
    .join(
        PhaseRow,
        (PhaseRow.run_id == TaskRow.run_id)
        & (PhaseRow.round_number == TaskRow.round_number)
        & (PhaseRow.kind == TaskRow.kind),
    )
    .join(RunRow, RunRow.run_id == TaskRow.run_id)
)
"""The tasks, each with its phase and its run: add conditions and give it to `read_tasks`."""

_UPDATE_TASK = update(TaskRow).where(TaskRow.task_id == bindparam("of_task"))


@dataclass(frozen=True, slots=True)
class PhaseKey:
    """The name of a phase."""

    run_id: str
    round_number: int
    kind: TaskKind


@dataclass(frozen=True, slots=True)
class Task:
    """A task, with the columns of its phase that describe the work."""

    task_id: str
    key: PhaseKey
    run_uid: str
    device_id: str
    state: TaskState
    lease_seconds: float
    lease_expires_at: float
    weights: Digest
    reference: str  # a pool id, or a snapshot id ("" without a pool)
    asynchronous: bool
    goal: int  # of its phase
    result_sha256: str  # "" until the coordinator accepts a result
    report: bytes
    counted_round: int  # 0 until its result counts
    over_reason: str  # a LateReason by name, or ""
    refusal: str  # why the coordinator refused a result, or ""
    failures: int  # how often its device gave it up
    stage: TaskStage  # the highest that its device had reached when it was read


def read_tasks(
    connection: Connection, tasks: Select[*tuple[Any, ...]], **parameters: object
) -> list[Task]:
    """Return the tasks that a statement made from `SELECT_TASKS` finds."""
    return [_task(row) for row in connection.execute(tasks, parameters).mappings()]


def of_phase(key: PhaseKey) -> tuple[ColumnElement[bool], ...]:
    """Select the tasks that the coordinator assigned in a phase."""
    return (
        TaskRow.run_id == key.run_id,
        TaskRow.round_number == key.round_number,
        TaskRow.kind == key.kind,
    )


def counted_in(key: PhaseKey) -> tuple[ColumnElement[bool], ...]:
    """Select the tasks whose results count in a phase."""
    return (
        TaskRow.run_id == key.run_id,
        TaskRow.counted_round == key.round_number,
        TaskRow.kind == key.kind,
    )


def add_tasks(connection: Connection, key: PhaseKey, devices: Collection[str], now: float) -> None:
    """Assign devices to a phase. A device that has a task in the phase keeps that task."""
    run_uid = run_uid_of(connection, key.run_id)
    known = set(connection.scalars(select(TaskRow.device_id).where(*of_phase(key))))
    rows = [
        {
            "task_id": _task_id(run_uid, key, device_id),
            "run_id": key.run_id,
            "round_number": key.round_number,
            "kind": key.kind,
            "device_id": device_id,
            "state": TaskState.ASSIGNED.name,
            "assigned_at": now,
        }
        for device_id in devices
        if device_id not in known
    ]
    if rows:
        connection.execute(insert(TaskRow), rows)


def move_task(connection: Connection, task: Task, state: TaskState, **values: object) -> None:
    """Bring a task into another state, and write other columns with it."""
    require_movable(task, state)
    update_task(connection, task.task_id, state=state.name, **values)


def require_movable(task: Task, state: TaskState) -> None:
    """Raise WrongState if the task cannot go from its state to this one."""
    key = task.key
    name = f"task {task.task_id!r} of run {key.run_id!r}, round {key.round_number},"
    require_transition(TASK_TRANSITIONS, task.state, state, name)


def update_task(connection: Connection, task_id: str, **values: object) -> None:
    """Write columns of a task."""
    connection.execute(_UPDATE_TASK, {"of_task": task_id, **values})


def lease_task(connection: Connection, task: Task, now: float) -> Task:
    """Lease a task to its device, or renew the lease that the device has.

    The returned task has the stage from before: a task that was not taken is a new one.
    """
    leased = replace(task, state=TaskState.LEASED, lease_expires_at=now + task.lease_seconds)
    if task.state is TaskState.LEASED:
        update_task(connection, task.task_id, lease_expires_at=leased.lease_expires_at)
    else:
        move_task(
            connection,
            task,
            TaskState.LEASED,
            lease_expires_at=leased.lease_expires_at,
            leased_at=now,
            stage=int(TaskStage.TAKEN),
        )
    return leased


def end_tasks(
    connection: Connection,
    reason: LateReason,
    now: float,
    *conditions: ColumnElement[bool],
    states: Collection[TaskState] = PENDING,
) -> int:
    """End the tasks that are in one of the states, and return their number.

    The coordinator tells a device the reason when it next asks about its task.
    """
    if TaskState.LEASED in states:
        leased = SELECT_TASKS.where(*conditions, TaskRow.state == TaskState.LEASED.name)
        tasks = read_tasks(connection, leased)
        for task in sorted(tasks, key=lambda task: (task.device_id, task.key.round_number)):
            append_task_event(connection, task, EventKind.TASK_LATE, now, reason=reason.value)
    values = {"state": TaskState.OVER.name, "over_reason": reason.name}
    return _move_all(connection, states, TaskState.OVER, *conditions, **values)


def end_pending(connection: Connection, run_id: str, reason: LateReason, now: float) -> None:
    """End the pending tasks of a run that ends."""
    end_tasks(connection, reason, now, TaskRow.run_id == run_id)


def restart_failed_tasks(connection: Connection, run_id: str, now: float) -> None:
    """Restart the failed tasks and the deadlines of open phases, when a run is resumed."""
    is_open = (PhaseRow.run_id == run_id, PhaseRow.closed.is_(False))
    connection.execute(
        update(PhaseRow).where(*is_open).values(deadline_at=now + PhaseRow.deadline_seconds)
    )
    new = {
        "state": TaskState.ASSIGNED.name,
        "leased_at": 0.0,
        "over_reason": "",
        "refusal": "",
        "stage": int(TaskStage.ASSIGNED),
    }
    open_phases = select(PhaseRow.round_number, PhaseRow.kind).where(*is_open)
    for round_number, kind in connection.execute(open_phases).all():
        tasks = of_phase(PhaseKey(run_id, round_number, cast(TaskKind, kind)))
        _move_all(connection, (TaskState.FAILED,), TaskState.ASSIGNED, *tasks, **new)
        slow = (*tasks, TaskRow.over_reason == LateReason.TOO_SLOW.name)
        _move_all(connection, (TaskState.OVER,), TaskState.ASSIGNED, *slow, **new)
    # Failures in closed phases no longer count against their devices.
    failed = (TaskState.FAILED,)
    end_tasks(connection, LateReason.FAILED, now, TaskRow.run_id == run_id, states=failed)


def append_task_event(
    connection: Connection, task: Task, kind: EventKind, now: float, **details: object
) -> None:
    """Write an event of a task to the log of its run."""
    key = task.key
    of_task = {"round": key.round_number, "phase": key.kind, "device": task.device_id}
    append_to_log(connection, task.run_uid, key.run_id, kind, now, of_task | details)


def _task(row: RowMapping) -> Task:
    return Task(
        task_id=row["task_id"],
        key=PhaseKey(row["run_id"], row["round_number"], cast(TaskKind, row["kind"])),
        run_uid=f"{row['run_id']}.{row['nonce']}",
        device_id=row["device_id"],
        state=TaskState[row["state"]],
        lease_seconds=row["lease_seconds"],
        lease_expires_at=row["lease_expires_at"],
        weights=Digest(row["weights_sha256"], row["weights_bytes"]),
        reference=row["reference"],
        asynchronous=row["asynchronous"],
        goal=row["goal"],
        result_sha256=row["result_sha256"],
        report=row["report"],
        counted_round=row["counted_round"],
        over_reason=row["over_reason"],
        refusal=row["refusal"],
        failures=row["failures"],
        stage=TaskStage(row["stage"]),
    )


def _task_id(run_uid: str, key: PhaseKey, device_id: str) -> str:
    """Derive the id, so that assigning a device twice to the same phase gives one task."""
    name = f"{run_uid}/{key.round_number}/{key.kind}/{device_id}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _move_all(
    connection: Connection,
    states: Iterable[TaskState],
    target: TaskState,
    *conditions: ColumnElement[bool],
    **values: object,
) -> int:
    for state in states:
        require_transition(TASK_TRANSITIONS, state, target, "a task")
    names = [state.name for state in states]
    moving = update(TaskRow).where(*conditions, TaskRow.state.in_(names)).values(**values)
    return connection.execute(moving).rowcount
