"""Tasks in the database, as the devices see them: leased, kept, handed in, given up.

Every method is one transaction, so a `kill -9` falls before it or after it, never inside. What a
result does to its round is in `counting`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine, bindparam, case, func, select, update

from coordinator.records.acceptance import close_if_full, round_of_result
from coordinator.records.drain import is_drained
from coordinator.records.states import PENDING, TaskState
from coordinator.records.tables import RunRow, TaskRow
from coordinator.records.task_rows import (
    PENDING_NAMES,
    WHOLE_TASKS,
    Task,
    WholeTask,
    change_task,
    change_tasks,
    move_task,
    move_tasks,
    require_movable,
    task_of,
    tell_of_task,
)
from hfmds.domain.digest import Digest
from hfmds.domain.runs import RunState
from hfmds.domain.tasks import FailureCause, LateReason, TaskStage
from hfmds.errors import Conflict, HfmdsError, NotAllowed, NotFound, TooLate, WrongState
from hfmds.storage.database import changing, looking, reading
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind

_ALMOST_NEW = 0.9  # of a lease that is not worth a commit

_BY_ID = Prepared(WHOLE_TASKS.where(TaskRow.task_id == bindparam("task_id")))
_OFFERED_ROWS = WHOLE_TASKS.where(
    TaskRow.device_id.in_(bindparam("devices", expanding=True)),
    TaskRow.state.in_(PENDING_NAMES),
    RunRow.state == RunState.RUNNING.name,
    # LEASED sorts after ASSIGNED: a device goes on with what it holds.
).order_by(TaskRow.state.desc(), TaskRow.assigned_at, TaskRow.task_id)
_OFFERED = Prepared(_OFFERED_ROWS)
_WHOSE_OFFERED = Prepared(_OFFERED_ROWS.with_only_columns(TaskRow.device_id, TaskRow.run_id))

_WHY_LATE = {
    LateReason.ACCEPTED: "its result was accepted before",
    LateReason.GOAL_REACHED: "the round has all the results it needs",
    LateReason.DEADLINE: "the round closed at its deadline",
    LateReason.GONE: "the round closed while nothing was heard of the device",
    LateReason.TOO_SLOW: "it took longer than the run allows",
    LateReason.STALE: "the model it began at is too old by now",
    LateReason.FAILED: "the device gave it up",
    LateReason.CANCELLED: "the run was cancelled",
    LateReason.COMPLETED: "the run has completed",
}


@dataclass(frozen=True, slots=True)
class HandedIn:
    """A result that its device hands in.

    `is_here` says whether its bytes are. In asynchronous rounds they may go until it is accepted,
    if they are the same as those of another device's result that is spent.
    """

    device_id: str
    task_id: str
    result: Digest
    report: bytes
    is_here: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class Acceptance:
    """That a result counts."""

    already: bool  # and did before
    moves_round: bool = False  # its round has something to see to


class TaskRecords:
    """What the coordinator remembers of its tasks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def lease(self, device_id: str, run_id: str, now: float) -> Task | None:
        """As `lease_each`, for one device."""
        return self.lease_each([(device_id, run_id)], now)[0]

    def lease_each(self, asking: Sequence[tuple[str, str]], now: float) -> list[Task | None]:
        """Each device's next task, leased: the one it holds already, else the oldest assigned.

        Asking are devices, each with a run id; without one, a task of any running run will do.
        While the coordinator is drained, none but that which a device holds.
        """
        # Looked for first without the write lock: most check-ins find nothing.
        devices = {"devices": list({device_id for device_id, _ in asking})}
        with looking(self._engine) as connection:
            if not any(_firsts(_WHOSE_OFFERED.all(connection, devices), asking)):
                return [None] * len(asking)
        with changing(self._engine) as connection:
            rows = _OFFERED.all(connection, devices)
            if is_drained(connection):
                rows = [row for row in rows if row.state == TaskState.LEASED.name]
            found = _firsts(rows, asking)
            _lease_all(connection, [row for row in found if row is not None], now)
        return [replace(task_of(row), state=TaskState.LEASED) if row else None for row in found]

    def renew(self, device_id: str, task_id: str, now: float) -> float:
        """Extend a lease; returns its seconds."""
        with changing(self._engine) as connection:
            row = _own_task(connection, device_id, task_id)
            _require_pending(row)
            seconds: float = row.lease_seconds
            change_task(connection, task_id, lease_expires_at=now + seconds)
            return seconds

    def renew_if_worth_it(self, device_id: str, task_id: str, now: float) -> float:
        """Extend a lease unless it is almost new; returns its seconds from now."""
        with looking(self._engine) as connection:
            row = _own_task(connection, device_id, task_id)
            _require_pending(row)
            left: float = row.lease_expires_at - now
            if left > _ALMOST_NEW * row.lease_seconds:
                return left
        return self.renew(device_id, task_id, now)

    def expire_leases(self, device_id: str) -> set[str]:
        """Let the leases of a device that has gone run out now; the runs they were of."""
        held = (TaskRow.device_id == device_id, TaskRow.state == TaskState.LEASED.name)
        with changing(self._engine) as connection:
            runs = set(connection.scalars(select(TaskRow.run_id).where(*held)))
            connection.execute(update(TaskRow).where(*held).values(lease_expires_at=0.0))
            return runs

    def get(self, device_id: str, task_id: str) -> Task:
        """A device's own task."""
        with looking(self._engine) as connection:
            return task_of(_own_task(connection, device_id, task_id))

    def get_pending(self, device_id: str, task_id: str) -> Task:
        """A device's own task, which must not be over."""
        with looking(self._engine) as connection:
            row = _own_task(connection, device_id, task_id)
        if row.state != TaskState.ACCEPTED.name:  # a repeated upload is answered as the first
            _require_pending(row)
        return task_of(row)

    def accept(
        self,
        device_id: str,
        task_id: str,
        result: Digest,
        report: bytes,
        now: float,
        is_here: Callable[[], bool] = lambda: True,
    ) -> bool:
        """As `accept_each`, for one result; true if the same one had been accepted before."""
        handed_in = HandedIn(device_id, task_id, result, report, is_here)
        (outcome,) = self.accept_each([handed_in], now)
        if isinstance(outcome, HfmdsError):
            raise outcome
        return outcome.already

    def accept_each(self, results: Iterable[HandedIn], now: float) -> list[Acceptance | HfmdsError]:
        """Count results, each once, in the order they are in; or say why one does not count."""
        with changing(self._engine) as connection:
            return [_accepted(connection, result, now) for result in results]

    def refuse(self, device_id: str, task_id: str, what: str, now: float) -> None:
        """Note that a result was refused; of a task, the first refusal only, so that it ends."""
        with changing(self._engine) as connection:
            row = _own_task(connection, device_id, task_id)
            if not row.refusal:
                change_task(connection, task_id, refusal=what)
                tell_of_task(connection, row, EventKind.TASK_REFUSED, now, reason=what)

    def fail(
        self, device_id: str, task_id: str, reason: str, cause: FailureCause, now: float
    ) -> FailureCause | None:
        """Note that the device gave the task up, and what for; None if it had said so before."""
        with changing(self._engine) as connection:
            row = _own_task(connection, device_id, task_id)
            if row.state == TaskState.FAILED.name:
                return None
            _require_pending(row)
            if row.refusal:  # whatever the device makes of it, we know why
                cause = FailureCause.REFUSED
            move_task(
                connection,
                row,
                TaskState.FAILED,
                failure=reason,
                failure_cause=cause.name,
                failures=row.failures + 1,
            )
            told = {"cause": cause.value, "reason": reason}
            tell_of_task(connection, row, EventKind.TASK_FAILED, now, **told)
            return cause

    def last_failures(self, devices: Collection[str]) -> dict[str, str]:
        """Why each of these devices last gave a task up."""
        told = (
            select(TaskRow.device_id, TaskRow.failure)
            .where(TaskRow.device_id.in_(devices), TaskRow.failures > 0)
            .order_by(TaskRow.assigned_at)
        )
        with reading(self._engine) as session:
            return {row[0]: row[1] for row in session.execute(told)}  # the last one stays

    def tallies(self, devices: Collection[str]) -> dict[str, tuple[int, int]]:
        """For each of these, over all runs: tasks accepted, and how often it gave one up."""
        accepted = case((TaskRow.state == TaskState.ACCEPTED.name, 1), else_=0)
        by_device = (
            select(TaskRow.device_id, func.sum(accepted), func.sum(TaskRow.failures))
            .where(TaskRow.device_id.in_(devices))
            .group_by(TaskRow.device_id)
        )
        with reading(self._engine) as session:
            return {row[0]: (row[1], row[2]) for row in session.execute(by_device)}

    def leases(self, now: float) -> dict[str, tuple[str, TaskStage]]:
        """The task each working device holds, and how far it is with it."""
        live = select(TaskRow.device_id, TaskRow.task_id, TaskRow.stage).where(
            TaskRow.state == TaskState.LEASED.name, TaskRow.lease_expires_at > now
        )
        with reading(self._engine) as session:
            return {row[0]: (row[1], TaskStage(row[2])) for row in session.execute(live)}


def _accepted(connection: Connection, handed_in: HandedIn, now: float) -> Acceptance | HfmdsError:
    """Count a result; those before it in the same transaction do not suffer if it is refused."""
    result = handed_in.result
    try:
        row = _own_task(connection, handed_in.device_id, handed_in.task_id)
        if row.state == TaskState.ACCEPTED.name:
            if row.result_sha256 == result.sha256:
                return Acceptance(already=True)
            raise Conflict(
                f"task {row.task_id!r} was accepted with result {row.result_sha256[:12]}; "
                f"{result} is not counted"
            )
        _require_pending(row)
        require_movable(row, TaskState.ACCEPTED)  # not one that is assigned anew meanwhile
        if row.asynchronous and not handed_in.is_here():
            raise not_uploaded(result)
    except HfmdsError as error:  # nothing of it is written yet
        return error
    number, goal = round_of_result(connection, row)
    move_task(
        connection,
        row,
        TaskState.ACCEPTED,
        accepted_at=now,
        counted_round=number,
        result_sha256=result.sha256,
        report=handed_in.report,
        stage=int(TaskStage.UPLOADED),
    )
    tell_of_task(connection, row, EventKind.TASK_ACCEPTED, now, result=result.sha256)
    return Acceptance(False, moves_round=close_if_full(connection, row, number, goal, now))


def _firsts(rows: Iterable[WholeTask], asking: Iterable[tuple[str, str]]) -> list[WholeTask | None]:
    """For each that asks, the first row that is of its device, and of its run if one is named."""
    of_device = defaultdict[str, list[WholeTask]](list)
    for row in rows:
        of_device[row.device_id].append(row)
    return [
        next((row for row in of_device[device_id] if run_id in ("", row.run_id)), None)
        for device_id, run_id in asking
    ]


def _lease_all(connection: Connection, rows: Sequence[WholeTask], now: float) -> None:
    assigned = [row for row in rows if row.state != TaskState.LEASED.name]
    move_tasks(connection, assigned, TaskState.LEASED, leased_at=now, stage=int(TaskStage.TAKEN))
    change_tasks(
        connection, {row.task_id: {"lease_expires_at": now + row.lease_seconds} for row in rows}
    )


def not_uploaded(update: Digest) -> WrongState:
    """What a device is told whose update is not there."""
    return WrongState(f"update {update} is not uploaded; upload it, then submit again")


def _own_task(connection: Connection, device_id: str, task_id: str) -> WholeTask:
    row = _BY_ID.first(connection, {"task_id": task_id})
    if row is None:
        raise NotFound(f"there is no task {task_id[:140]!r}; check in again for new work")
    if row.device_id != device_id:
        raise NotAllowed(f"task {row.task_id!r} is not device {device_id!r}'s")
    return row


def _require_pending(row: WholeTask) -> None:
    state = TaskState[row.state]
    if state in PENDING:
        return
    if state is TaskState.OVER:
        reason = LateReason[row.over_reason]
    else:
        reason = LateReason.ACCEPTED if state is TaskState.ACCEPTED else LateReason.FAILED
    raise TooLate(
        f"task {row.task_id!r} of run {row.run_id!r}, round {row.round_number}, is over: "
        f"{_WHY_LATE[reason]}; check in again for new work",
        reason.value,
    )
