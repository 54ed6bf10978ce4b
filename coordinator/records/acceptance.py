"""Which result counts in which round, and when a phase has enough of them.

Within the transaction that accepts a result, so that exactly as many count as a round is to have:
the next one is told that it is late, or, in asynchronous rounds, counts in the round after.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, func, select, update

from coordinator.records.events import append_event
from coordinator.records.rounds import enter
from coordinator.records.states import RoundState, TaskState
from coordinator.records.tables import PhaseRow, TaskRow
from coordinator.records.task_rows import (
    OF_THIS_PHASE,
    PENDING_NAMES,
    THIS_PHASE,
    PhaseKey,
    WholeTask,
    change_task,
    end_tasks,
    of_phase,
    which,
)
from hfmds.domain.tasks import LateReason
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind

_AFTER = {
    "synthesise": RoundState.SEALING,
    "train": RoundState.AGGREGATING,
    "evaluate": RoundState.EVALUATING,  # in which it stays until it is recorded
}


_IN_ROUND = (
    TaskRow.run_id == bindparam("of_run"),
    TaskRow.counted_round == bindparam("of_round"),
    TaskRow.kind == bindparam("of_kind"),
)
_COUNTED = Prepared(select(func.count().label("results")).where(*_IN_ROUND))
_OF_DEVICE = Prepared(
    select(TaskRow.task_id).where(*_IN_ROUND, TaskRow.device_id == bindparam("device_id")).limit(1)
)
_LEFT = Prepared(
    select(TaskRow.task_id).where(*OF_THIS_PHASE, TaskRow.state.in_(PENDING_NAMES)).limit(1)
)
_OPEN = Prepared(
    select(PhaseRow.round_number, PhaseRow.goal).where(
        PhaseRow.run_id == bindparam("run_id"),
        PhaseRow.kind == bindparam("kind"),
        PhaseRow.closed.is_(False),
    )
)
_LEFTOVERS = Prepared(
    select(TaskRow.task_id, TaskRow.device_id)
    .where(
        TaskRow.run_id == bindparam("run_id"),
        TaskRow.counted_round == 0,
        TaskRow.kind == bindparam("kind"),
        TaskRow.state == TaskState.ACCEPTED.name,
    )
    .order_by(TaskRow.accepted_at, TaskRow.task_id)
)
_CLOSE = Prepared(update(PhaseRow).where(*THIS_PHASE).values(closed=True))


def round_of_result(connection: Connection, task: WholeTask) -> tuple[int, int]:
    """Where a result counts that is being accepted: its own round, or the one that is open.

    With the goal of that round; 0: nowhere yet.
    """
    if not task.asynchronous:
        return task.round_number, task.goal
    phase = _OPEN.first(connection, {"run_id": task.run_id, "kind": task.kind})
    if phase is not None:
        key = PhaseKey(task.run_id, phase.round_number, task.kind)
        if not _has_counted(connection, key, task.device_id):
            return phase.round_number, phase.goal
    # Between two rounds nobody counts; the next round begins with what came meanwhile.
    return 0, 0


def close_if_full(
    connection: Connection, task: WholeTask, number: int, goal: int, now: float
) -> bool:
    """Close the phase in which a result counts from now on, if it has as many as it is to have.

    True if its round has to see to it: it is closed, or nobody is left who could send more. In
    asynchronous rounds it always has, since the device may be asked again.
    """
    counting = PhaseKey(task.run_id, number, task.kind)
    if goal and _results(connection, counting) >= goal:
        close(connection, counting, LateReason.GOAL_REACHED, now, asynchronous=task.asynchronous)
        return True
    began = PhaseKey(task.run_id, task.round_number, task.kind)
    return task.asynchronous or not _anybody_left(connection, began)


def count_leftovers(connection: Connection, key: PhaseKey, goal: int, now: float) -> None:
    """At the opening of an asynchronous round: count what was accepted and counts nowhere yet."""
    for task in _LEFTOVERS.all(connection, {"run_id": key.run_id, "kind": key.kind}):
        if not _has_counted(connection, key, task.device_id):
            change_task(connection, task.task_id, counted_round=key.round_number)
            if goal and _results(connection, key) >= goal:
                close(connection, key, LateReason.GOAL_REACHED, now, asynchronous=True)
                return


def close(
    connection: Connection, key: PhaseKey, reason: LateReason, now: float, *, asynchronous: bool
) -> None:
    """Close an open phase: what is pending is over, except in asynchronous rounds."""
    _CLOSE.change(connection, which(key))
    if not asynchronous and _anybody_left(connection, key):
        end_tasks(connection, reason, now, *of_phase(key))
    append_event(
        connection,
        key.run_id,
        EventKind.PHASE_CLOSED,
        now,
        round=key.round_number,
        phase=key.kind,
        reason=reason.value,
        results=_results(connection, key),
    )
    enter(connection, key.run_id, key.round_number, _AFTER[key.kind], now)


def _has_counted(connection: Connection, key: PhaseKey, device_id: str) -> bool:
    """Whether the device is in an asynchronous round already: the mean takes one update of each."""
    return _OF_DEVICE.first(connection, {**which(key), "device_id": device_id}) is not None


def _anybody_left(connection: Connection, key: PhaseKey) -> bool:
    """Whether a result of a phase's own tasks is still to come."""
    return _LEFT.first(connection, which(key)) is not None


def _results(connection: Connection, key: PhaseKey) -> int:
    """How many results count in the phase's round."""
    found: int = _COUNTED.value(connection, which(key))
    return found
