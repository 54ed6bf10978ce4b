"""Rows of phases and tasks, for those who change them within a transaction of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from sqlalchemy import ColumnElement, Connection, bindparam, insert, select, update

from coordinator.records.events import append_to_log, nonce_of
from coordinator.records.states import PENDING, TASK_TRANSITIONS, TaskState
from coordinator.records.tables import PhaseRow, RunRow, TaskRow
from hfmds.domain.digest import Digest
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import LateReason, TaskStage
from hfmds.state_machine import require_transition
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind

PENDING_NAMES = tuple(state.name for state in PENDING)

# Columns and not rows of the ORM, in statements that are made once: devices ask all the time, and
# either would take longer than the database's answer.
WholeTask: TypeAlias = Any
WHOLE_TASKS = (
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
"""Tasks with what their phase says of the work, and the nonce of their run."""

# A phase, and its own tasks, in statements that are made once: `which` has their parameters.
THIS_PHASE = (
    PhaseRow.run_id == bindparam("of_run"),
    PhaseRow.round_number == bindparam("of_round"),
    PhaseRow.kind == bindparam("of_kind"),
)
OF_THIS_PHASE = (
    TaskRow.run_id == bindparam("of_run"),
    TaskRow.round_number == bindparam("of_round"),
    TaskRow.kind == bindparam("of_kind"),
)

_ONE_TASK = Prepared(update(TaskRow).where(TaskRow.task_id == bindparam("which")))
_DEVICES = Prepared(select(TaskRow.device_id).where(*OF_THIS_PHASE))
_ADD = Prepared(insert(TaskRow))
_NEW = {
    "state": TaskState.ASSIGNED.name,
    "leased_at": 0.0,
    "lease_expires_at": 0.0,
    "accepted_at": 0.0,
    "counted_round": 0,
    "over_reason": "",
    "result_sha256": "",
    "report": b"",
    "failure": "",
    "failure_cause": "",
    "failures": 0,
    "refusal": "",
    "stage": int(TaskStage.ASSIGNED),
}


@dataclass(frozen=True, slots=True)
class PhaseKey:
    """Names a phase."""

    run_id: str
    round_number: int
    kind: TaskKind


@dataclass(frozen=True, slots=True)
class Task:
    """A task together with what its phase says of the work."""

    task_id: str
    key: PhaseKey
    run_uid: str
    device_id: str
    state: TaskState
    lease_seconds: float
    weights: Digest
    reference: str
    report: bytes
    counted_round: int


def which(key: PhaseKey) -> dict[str, object]:
    """A phase, as a parameter of statements."""
    return {"of_run": key.run_id, "of_round": key.round_number, "of_kind": key.kind}


def of_phase(key: PhaseKey) -> tuple[ColumnElement[bool], ...]:
    """The tasks that were assigned in a phase."""
    return (
        TaskRow.run_id == key.run_id,
        TaskRow.round_number == key.round_number,
        TaskRow.kind == key.kind,
    )


def task_of(row: WholeTask) -> Task:
    """The task as a value."""
    return Task(
        task_id=row.task_id,
        key=PhaseKey(row.run_id, row.round_number, cast(TaskKind, row.kind)),
        run_uid=f"{row.run_id}.{row.nonce}",
        device_id=row.device_id,
        state=TaskState[row.state],
        lease_seconds=row.lease_seconds,
        weights=Digest(row.weights_sha256, row.weights_bytes),
        reference=row.reference,
        report=row.report,
        counted_round=row.counted_round,
    )


def add_tasks(connection: Connection, key: PhaseKey, devices: Iterable[str], now: float) -> None:
    """Assign devices to a phase; one that has a task in it keeps that."""
    nonce = nonce_of(connection, key.run_id)
    known = {row.device_id for row in _DEVICES.all(connection, which(key))}

    def task_id(device_id: str) -> str:
        # Derived, not drawn: assigning a device to the same phase twice is one task.
        name = f"{key.run_id}/{nonce}/{key.round_number}/{key.kind}/{device_id}"
        return hashlib.sha256(name.encode()).hexdigest()[:32]

    added = [
        {
            "task_id": task_id(device_id),
            "run_id": key.run_id,
            "round_number": key.round_number,
            "kind": key.kind,
            "device_id": device_id,
            "assigned_at": now,
            **_NEW,
        }
        for device_id in devices
        if device_id not in known
    ]
    _ADD.change_each(connection, added)


def move_task(connection: Connection, task: WholeTask, wanted: TaskState, **values: object) -> None:
    """Bring one task into another state, and write what that comes with."""
    move_tasks(connection, [task], wanted, **values)


def require_movable(task: WholeTask, wanted: TaskState) -> None:
    """WrongState if a task cannot come into this state from the one it is in."""
    what = f"task {task.task_id!r} of run {task.run_id!r}, round {task.round_number},"
    require_transition(TASK_TRANSITIONS, TaskState[task.state], wanted, what)


def move_tasks(
    connection: Connection, tasks: Collection[WholeTask], wanted: TaskState, **values: object
) -> None:
    """Bring tasks into another state, and write what that comes with, the same to each."""
    for task in tasks:
        require_movable(task, wanted)
    values = {"state": wanted.name, **values}
    _ONE_TASK.change_each(connection, [{"which": task.task_id, **values} for task in tasks])


def change_task(connection: Connection, task_id: str, **values: object) -> None:
    """Write to columns of one task."""
    change_tasks(connection, {task_id: values})


def change_tasks(connection: Connection, values: Mapping[str, Mapping[str, object]]) -> None:
    """Write to columns of tasks, by id, to the same columns of each."""
    _ONE_TASK.change_each(connection, [{"which": task_id, **v} for task_id, v in values.items()])


def end_tasks(
    connection: Connection,
    reason: LateReason,
    now: float,
    *tasks: ColumnElement[bool],
    states: Collection[TaskState] = PENDING,
) -> int:
    """End those of the tasks that are in one of the states; devices are told the reason.

    Returns how many that are.
    """
    if TaskState.LEASED in states:
        leased = WHOLE_TASKS.where(*tasks, TaskRow.state == TaskState.LEASED.name)
        rows = connection.execute(leased)
        for row in sorted(rows, key=lambda row: (row.device_id, row.round_number)):
            tell_of_task(connection, row, EventKind.TASK_LATE, now, reason=reason.value)
    ended = {"state": TaskState.OVER.name, "over_reason": reason.name}
    return _move_all(connection, states, TaskState.OVER, *tasks, **ended)


def end_pending(connection: Connection, run_id: str, reason: LateReason, now: float) -> None:
    """Within a transaction that ends a run: its pending tasks are over."""
    end_tasks(connection, reason, now, TaskRow.run_id == run_id)


def tell_of_task(
    connection: Connection, task: WholeTask, kind: EventKind, now: float, **details: object
) -> None:
    """Write an event of a task to its run's log."""
    of_task = {"round": task.round_number, "phase": task.kind, "device": task.device_id}
    append_to_log(connection, task.run_id, task.nonce, kind, now, of_task | details)


def give_second_chance(connection: Connection, run_id: str, now: float) -> None:
    """Within a transaction that resumes a run: lost tasks and open deadlines start anew."""
    is_open = (PhaseRow.run_id == run_id, PhaseRow.closed.is_(False))
    in_time = update(PhaseRow).values(deadline_at=now + PhaseRow.deadline_seconds)
    again = {
        "state": TaskState.ASSIGNED.name,
        "leased_at": 0.0,
        "over_reason": "",
        "refusal": "",
        "stage": int(TaskStage.ASSIGNED),
    }
    connection.execute(in_time.where(*is_open))
    open_phases = select(PhaseRow.round_number, PhaseRow.kind).where(*is_open)
    for number, kind in connection.execute(open_phases).all():
        mine = of_phase(PhaseKey(run_id, number, cast(TaskKind, kind)))
        _move_all(connection, (TaskState.FAILED,), TaskState.ASSIGNED, *mine, **again)
        slow = (*mine, TaskRow.over_reason == LateReason.TOO_SLOW.name)
        _move_all(connection, (TaskState.OVER,), TaskState.ASSIGNED, *slow, **again)
    # Those of closed phases no longer count against their devices.
    failed = (TaskState.FAILED,)
    end_tasks(connection, LateReason.FAILED, now, TaskRow.run_id == run_id, states=failed)


def _move_all(
    connection: Connection,
    states: Iterable[TaskState],
    wanted: TaskState,
    *tasks: ColumnElement[bool],
    **values: object,
) -> int:
    for state in states:
        require_transition(TASK_TRANSITIONS, state, wanted, "a task")
    names = [state.name for state in states]
    moving = update(TaskRow).where(*tasks, TaskRow.state.in_(names)).values(**values)
    return connection.execute(moving).rowcount
