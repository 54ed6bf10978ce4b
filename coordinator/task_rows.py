"""Rows of phases and tasks, for those who change them within a transaction of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Row,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session

from coordinator.events import append_event, append_to_log
from coordinator.states import PENDING, TASK_TRANSITIONS, TaskState
from coordinator.tables import PhaseRow, RunRow, TaskRow
from hfmds.algorithm.seeds import Phase as Kind
from hfmds.digest import Digest
from hfmds.state_machine import require_transition
from hfmds.wire.events import EventKind
from hfmds.wire.types import LateReason, TaskStage

PENDING_NAMES = tuple(state.name for state in PENDING)

# Columns and not rows of the ORM, in statements that are made once: devices ask all the time, and
# either would take longer than the database's answer.
WholeTask: TypeAlias = Row[*tuple[Any, ...]]
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

_ONE_TASK = update(TaskRow).where(TaskRow.task_id == bindparam("which"))


@dataclass(frozen=True, slots=True)
class PhaseKey:
    """Names a phase."""

    run_id: str
    round_number: int
    kind: Kind


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


def primary_key(key: PhaseKey) -> tuple[str, int, str]:
    """A phase's, in its table."""
    return (key.run_id, key.round_number, key.kind)


def key_of(phase: PhaseRow) -> PhaseKey:
    """A phase's name."""
    return PhaseKey(phase.run_id, phase.round_number, cast(Kind, phase.kind))


def of_phase(key: PhaseKey) -> tuple[ColumnElement[bool], ...]:
    """The tasks that were assigned in a phase."""
    return (
        TaskRow.run_id == key.run_id,
        TaskRow.round_number == key.round_number,
        TaskRow.kind == key.kind,
    )


def pending_of_run(run_id: str) -> tuple[ColumnElement[bool], ...]:
    """A run's tasks whose results are still wanted."""
    return (TaskRow.run_id == run_id, TaskRow.state.in_(PENDING_NAMES))


def task_of(row: WholeTask) -> Task:
    """The task as a value."""
    return Task(
        task_id=row.task_id,
        key=PhaseKey(row.run_id, row.round_number, cast(Kind, row.kind)),
        run_uid=f"{row.run_id}.{row.nonce}",
        device_id=row.device_id,
        state=TaskState[row.state],
        lease_seconds=row.lease_seconds,
        weights=Digest(row.weights_sha256, row.weights_bytes),
        reference=row.reference,
        report=row.report,
        counted_round=row.counted_round,
    )


def add_tasks(session: Session, key: PhaseKey, devices: Iterable[str], now: float) -> None:
    """Assign devices to a phase; one that has a task in it keeps that."""
    nonce = session.get_one(RunRow, key.run_id).nonce
    known = set(session.scalars(select(TaskRow.device_id).where(*of_phase(key))))

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
            "state": TaskState.ASSIGNED.name,
            "assigned_at": now,
        }
        for device_id in devices
        if device_id not in known
    ]
    if added:
        session.connection().execute(insert(TaskRow), added)


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
    if tasks:
        values = {"state": wanted.name, **values}
        connection.execute(_ONE_TASK, [{"which": task.task_id, **values} for task in tasks])


def change_task(connection: Connection, task_id: str, **values: object) -> None:
    """Write to columns of one task."""
    connection.execute(_ONE_TASK, {"which": task_id, **values})


def end_tasks(
    session: Session,
    reason: LateReason,
    now: float,
    *tasks: ColumnElement[bool],
    states: Collection[TaskState] = PENDING,
) -> int:
    """End those of the tasks that are in one of the states; devices are told the reason.

    Returns how many that are.
    """
    if TaskState.LEASED in states:
        leased = select(TaskRow).where(*tasks, TaskRow.state == TaskState.LEASED.name)
        rows = session.scalars(leased)
        for row in sorted(rows, key=lambda row: (row.device_id, row.round_number)):
            tell_of_task(session, row, EventKind.TASK_LATE, now, reason=reason.value)
    ended = {"state": TaskState.OVER.name, "over_reason": reason.name}
    return _move_all(session, states, TaskState.OVER, *tasks, **ended)


def end_pending(session: Session, run_id: str, reason: LateReason, now: float) -> None:
    """Within a transaction that ends a run: its pending tasks are over."""
    end_tasks(session, reason, now, TaskRow.run_id == run_id)


def tell_of_task(
    session: Session, task: TaskRow | WholeTask, kind: EventKind, now: float, **details: object
) -> None:
    """Write an event of a task to its run's log."""
    of_task = {"round": task.round_number, "phase": task.kind, "device": task.device_id}
    if isinstance(task, TaskRow):
        append_event(session, task.run_id, kind, now, **of_task, **details)
    else:
        append_to_log(session, task.run_id, task.nonce, kind, now, of_task | details)


def give_second_chance(session: Session, run_id: str, now: float) -> None:
    """Within a transaction that resumes a run: lost tasks and open deadlines start anew."""
    is_open = (PhaseRow.run_id == run_id, PhaseRow.closed.is_(False))
    again = {
        "state": TaskState.ASSIGNED.name,
        "leased_at": 0.0,
        "over_reason": "",
        "refusal": "",
        "stage": int(TaskStage.ASSIGNED),
    }
    for phase in session.scalars(select(PhaseRow).where(*is_open)):
        phase.deadline_at = now + phase.deadline_seconds
        mine = of_phase(key_of(phase))
        _move_all(session, (TaskState.FAILED,), TaskState.ASSIGNED, *mine, **again)
        slow = (*mine, TaskRow.over_reason == LateReason.TOO_SLOW.name)
        _move_all(session, (TaskState.OVER,), TaskState.ASSIGNED, *slow, **again)
    # Those of closed phases no longer count against their devices.
    of_run = TaskRow.run_id == run_id
    end_tasks(session, LateReason.FAILED, now, of_run, states=(TaskState.FAILED,))


def _move_all(
    session: Session,
    states: Iterable[TaskState],
    wanted: TaskState,
    *tasks: ColumnElement[bool],
    **values: object,
) -> int:
    for state in states:
        require_transition(TASK_TRANSITIONS, state, wanted, "a task")
    names = [state.name for state in states]
    moving = update(TaskRow).where(*tasks, TaskRow.state.in_(names)).values(**values)
    return cast("CursorResult[Any]", session.execute(moving)).rowcount
