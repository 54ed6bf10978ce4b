"""Which results count, in which round, and when a phase has enough of them.

The coordinator decides this in the transaction that accepts a result, so exactly as many results
count as the phase wants. A device that is later gets TooLate. In asynchronous rounds its result
counts in the next round instead.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from sqlalchemy import Connection, bindparam, func, select, update

from coordinator.records.events import append_event
from coordinator.records.rounds import enter
from coordinator.records.states import PENDING, RoundState, TaskState
from coordinator.records.tables import PhaseRow, TaskRow
from coordinator.records.tasks import (
    PENDING_NAMES,
    SELECT_TASKS,
    PhaseKey,
    Task,
    append_task_event,
    counted_in,
    end_tasks,
    move_task,
    of_phase,
    read_tasks,
    require_movable,
    update_task,
)
from hfmds.domain.administration.events import EventKind
from hfmds.domain.digest import Digest
from hfmds.domain.tasks import LateReason, TaskStage
from hfmds.errors import Conflict, HfmdsError, NotAllowed, NotFound, TooLate, WrongState
from hfmds.storage.blobs import Blobs

_TASK_BY_ID = SELECT_TASKS.where(TaskRow.task_id == bindparam("task_id"))

# Built once, because building a statement takes longer than running it. `asdict` of a phase's key
# gives the parameters.
_ANY_PHASE = PhaseKey(*(cast(Any, bindparam(field.name)) for field in fields(PhaseKey)))
_COUNT_RESULTS = select(func.count()).where(*counted_in(_ANY_PHASE))
_FIND_PENDING = (
    select(TaskRow.task_id).where(*of_phase(_ANY_PHASE), TaskRow.state.in_(PENDING_NAMES)).limit(1)
)

_STATE_AFTER = {
    "synthesise": RoundState.SEALING,
    "train": RoundState.AGGREGATING,
    "evaluate": RoundState.EVALUATING,  # the round stays there until its record is written
}

_WHY_LATE = {
    LateReason.ACCEPTED: "its result is already accepted",
    LateReason.GOAL_REACHED: "the round has all results that it needs",
    LateReason.DEADLINE: "the round closed at its deadline",
    LateReason.GONE: "the round closed after the device had gone silent",
    LateReason.TOO_SLOW: "the device took longer than the run allows",
    LateReason.STALE: "the model that it began with is now too old",
    LateReason.FAILED: "the device gave it up",
    LateReason.CANCELLED: "the run was cancelled",
    LateReason.COMPLETED: "the run has completed",
}


@dataclass(frozen=True, slots=True)
class HandedIn:
    """A result that a device hands in.

    `blobs` stores the result's bytes, if it has any. In asynchronous rounds they may vanish before
    the coordinator accepts them: they may equal those of another device's result, which the
    coordinator has used and deleted.
    """

    device_id: str
    task_id: str
    result: Digest
    report: bytes
    blobs: Blobs | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The answer to a result that counts."""

    already: bool  # the coordinator accepted it before
    moves_round: bool = False  # the run's driver has to look at the round
    stage: TaskStage = TaskStage.ASSIGNED  # that the task had reached before


def accept_result(
    connection: Connection, handed_in: HandedIn, now: float
) -> Acceptance | HfmdsError:
    """Count a result once, or return why it does not count.

    A refusal writes nothing, so other results in the same transaction are safe.
    """
    try:
        task = own_task(connection, handed_in.device_id, handed_in.task_id)
        if task.state is TaskState.ACCEPTED:
            _require_same(task, handed_in.result)
            return Acceptance(already=True)
        require_pending(task)
        require_movable(task, TaskState.ACCEPTED)  # refuses a task that was assigned again
        blobs = handed_in.blobs
        if task.asynchronous and blobs and not blobs.contains(handed_in.result):
            raise not_uploaded(handed_in.result)
    except HfmdsError as error:
        return error
    round_number, goal = _counting_round(connection, task)
    move_task(
        connection,
        task,
        TaskState.ACCEPTED,
        accepted_at=now,
        counted_round=round_number,
        result_sha256=handed_in.result.sha256,
        report=handed_in.report,
        stage=int(TaskStage.UPLOADED),
    )
    result = handed_in.result.sha256
    append_task_event(connection, task, EventKind.TASK_ACCEPTED, now, result=result)
    closed = _close_if_full(connection, task, round_number, goal, now)
    # An asynchronous round always looks: it may ask the device again.
    moves_round = closed or task.asynchronous or not _has_pending(connection, task.key)
    return Acceptance(already=False, moves_round=moves_round, stage=task.stage)


def count_waiting_results(connection: Connection, key: PhaseKey, goal: int, now: float) -> None:
    """Count the results that no round counts yet, when an asynchronous phase opens."""
    waiting = SELECT_TASKS.where(
        TaskRow.run_id == key.run_id,
        TaskRow.counted_round == 0,
        TaskRow.kind == key.kind,
        TaskRow.state == TaskState.ACCEPTED.name,
    ).order_by(TaskRow.accepted_at, TaskRow.task_id)
    for task in read_tasks(connection, waiting):
        if _has_counted(connection, key, task.device_id):
            continue
        update_task(connection, task.task_id, counted_round=key.round_number)
        if _close_if_full(connection, task, key.round_number, goal, now):
            return


def close_phase(
    connection: Connection, key: PhaseKey, reason: LateReason, now: float, *, asynchronous: bool
) -> None:
    """Close an open phase. This ends its pending tasks, except in asynchronous rounds."""
    this_phase = (
        PhaseRow.run_id == key.run_id,
        PhaseRow.round_number == key.round_number,
        PhaseRow.kind == key.kind,
    )
    connection.execute(update(PhaseRow).where(*this_phase).values(closed=True))
    if not asynchronous:
        end_tasks(connection, reason, now, *of_phase(key))
    append_event(
        connection,
        key.run_id,
        EventKind.PHASE_CLOSED,
        now,
        round=key.round_number,
        phase=key.kind,
        reason=reason.value,
        results=_count_results(connection, key),
    )
    enter(connection, key.run_id, key.round_number, _STATE_AFTER[key.kind], now)


def own_task(connection: Connection, device_id: str, task_id: str) -> Task:
    """Return a device's task; NotFound, or NotAllowed for a task of another device."""
    tasks = read_tasks(connection, _TASK_BY_ID, task_id=task_id)
    if not tasks:
        raise NotFound(f"there is no task {task_id[:140]!r}; check in again for new work")
    if tasks[0].device_id != device_id:
        raise NotAllowed(f"task {task_id!r} is not device {device_id!r}'s")
    return tasks[0]


def require_pending(task: Task) -> None:
    """Raise TooLate if the coordinator does not want the task's result."""
    if task.state in PENDING:
        return
    match task.state:
        case TaskState.OVER:
            reason = LateReason[task.over_reason]
        case TaskState.ACCEPTED:
            reason = LateReason.ACCEPTED
        case _:
            reason = LateReason.FAILED
    raise TooLate(
        f"task {task.task_id!r} of run {task.key.run_id!r}, round {task.key.round_number}, is "
        f"over: {_WHY_LATE[reason]}; check in again for new work",
        reason.value,
    )


def not_uploaded(update: Digest) -> WrongState:
    """Return the error for a device whose update is not stored."""
    return WrongState(f"update {update} is not uploaded; upload it, then submit again")


def _require_same(task: Task, result: Digest) -> None:
    if task.result_sha256 != result.sha256:
        raise Conflict(
            f"task {task.task_id!r} was accepted with result {task.result_sha256[:12]}; "
            f"{result} is not counted"
        )


def _counting_round(connection: Connection, task: Task) -> tuple[int, int]:
    """Return the round in which a new result counts, and the goal of its phase.

    Between two asynchronous rounds, and for a second result of a device, this is (0, 0): the result
    waits for the next round.
    """
    if not task.asynchronous:
        return task.key.round_number, task.goal
    open_phase = select(PhaseRow.round_number, PhaseRow.goal).where(
        PhaseRow.run_id == task.key.run_id,
        PhaseRow.kind == task.key.kind,
        PhaseRow.closed.is_(False),
    )
    phase = connection.execute(open_phase).first()
    if phase is None:
        return 0, 0
    round_number, goal = phase
    key = PhaseKey(task.key.run_id, round_number, task.key.kind)
    return (0, 0) if _has_counted(connection, key, task.device_id) else (round_number, goal)


def _close_if_full(
    connection: Connection, task: Task, round_number: int, goal: int, now: float
) -> bool:
    """Close the phase in which the task's result counts, if its goal is reached."""
    key = PhaseKey(task.key.run_id, round_number, task.key.kind)
    if not goal or _count_results(connection, key) < goal:
        return False
    reason = LateReason.GOAL_REACHED
    close_phase(connection, key, reason, now, asynchronous=task.asynchronous)
    return True


def _has_counted(connection: Connection, key: PhaseKey, device_id: str) -> bool:
    """Return whether a phase counts a result of the device: the mean takes one of each device."""
    counted = select(TaskRow.task_id).where(*counted_in(key), TaskRow.device_id == device_id)
    return connection.scalar(counted.limit(1)) is not None


def _has_pending(connection: Connection, key: PhaseKey) -> bool:
    """Return whether results of the phase's own tasks can still come."""
    return connection.scalar(_FIND_PENDING, asdict(key)) is not None


def _count_results(connection: Connection, key: PhaseKey) -> int:
    """Count the results in the phase's round."""
    return connection.scalar(_COUNT_RESULTS, asdict(key)) or 0
