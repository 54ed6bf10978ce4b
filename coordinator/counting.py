"""Which result counts in which round, and when a phase has enough of them.

Within the transaction that accepts a result, so that exactly as many count as a round is to have:
the next one is told that it is late, or, in asynchronous rounds, counts in the round after.
"""

from __future__ import annotations

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from coordinator.events import append_event
from coordinator.round_records import enter
from coordinator.states import RoundState, TaskState
from coordinator.tables import PhaseRow, TaskRow
from coordinator.task_rows import PENDING_NAMES, WholeTask, end_tasks, key_of, of_phase
from hfmds.wire.events import EventKind
from hfmds.wire.types import LateReason

_AFTER = {
    "synthesise": RoundState.SEALING,
    "train": RoundState.AGGREGATING,
    "evaluate": RoundState.EVALUATING,  # in which it stays until it is recorded
}


_COUNTED = select(func.count()).where(
    TaskRow.run_id == bindparam("run_id"),
    TaskRow.counted_round == bindparam("round"),
    TaskRow.kind == bindparam("kind"),
)
_LEFT = (
    select(TaskRow.task_id)
    .where(
        TaskRow.run_id == bindparam("run_id"),
        TaskRow.round_number == bindparam("round"),
        TaskRow.kind == bindparam("kind"),
        TaskRow.state.in_(PENDING_NAMES),
    )
    .limit(1)
)


def round_of_result(session: Session, task: WholeTask) -> tuple[int, int]:
    """Where a result counts that is being accepted: its own round, or the one that is open.

    With the goal of that round; 0: nowhere yet.
    """
    if not task.asynchronous:
        return task.round_number, task.goal
    is_open = (PhaseRow.run_id == task.run_id, PhaseRow.kind == task.kind)
    phase = session.scalar(select(PhaseRow).where(*is_open, PhaseRow.closed.is_(False)))
    # Between two rounds nobody counts; the next round begins with what came meanwhile.
    if phase is None or _has_counted(session, phase, task.device_id):
        return 0, 0
    return phase.round_number, phase.goal


def close_if_full(session: Session, task: WholeTask, number: int, goal: int, now: float) -> bool:
    """Close the phase in which a result counts from now on, if it has as many as it is to have.

    True if its round has to see to it: it is closed, or nobody is left who could send more. In
    asynchronous rounds it always has, since the device may be asked again.
    """
    if goal and _counted(session, task.run_id, number, task.kind) >= goal:
        phase = session.get_one(PhaseRow, (task.run_id, number, task.kind))
        close(session, phase, LateReason.GOAL_REACHED, now)
        return True
    return task.asynchronous or not _anybody_left(session, task)


def count_leftovers(session: Session, phase: PhaseRow, now: float) -> None:
    """At the opening of an asynchronous round: count what was accepted and counts nowhere yet."""
    leftovers = (
        select(TaskRow)
        .where(
            TaskRow.run_id == phase.run_id,
            TaskRow.counted_round == 0,
            TaskRow.kind == phase.kind,
            TaskRow.state == TaskState.ACCEPTED.name,
        )
        .order_by(TaskRow.accepted_at, TaskRow.task_id)
    )
    for row in session.scalars(leftovers).all():
        if not phase.closed and not _has_counted(session, phase, row.device_id):
            row.counted_round = phase.round_number
            session.flush()
            if phase.goal and _results(session, phase) >= phase.goal:
                close(session, phase, LateReason.GOAL_REACHED, now)


def close(session: Session, phase: PhaseRow, reason: LateReason, now: float) -> None:
    """Close an open phase: what is pending is over, except in asynchronous rounds."""
    phase.closed = True
    if not phase.asynchronous:
        end_tasks(session, reason, now, *of_phase(key_of(phase)))
    append_event(
        session,
        phase.run_id,
        EventKind.PHASE_CLOSED,
        now,
        round=phase.round_number,
        phase=phase.kind,
        reason=reason.value,
        results=_results(session, phase),
    )
    enter(session, phase.run_id, phase.round_number, _AFTER[phase.kind], now)


def _has_counted(session: Session, phase: PhaseRow, device_id: str) -> bool:
    """Whether the device is in the round already: the mean takes one update of each."""
    if not phase.asynchronous:
        return False
    counted = (
        TaskRow.run_id == phase.run_id,
        TaskRow.counted_round == phase.round_number,
        TaskRow.kind == phase.kind,
        TaskRow.device_id == device_id,
    )
    return session.scalar(select(TaskRow.task_id).where(*counted).limit(1)) is not None


def _anybody_left(session: Session, task: WholeTask) -> bool:
    """Whether a result of the task's phase is still to come."""
    which = {"run_id": task.run_id, "round": task.round_number, "kind": task.kind}
    return session.connection().scalar(_LEFT, which) is not None


def _results(session: Session, phase: PhaseRow) -> int:
    return _counted(session, phase.run_id, phase.round_number, phase.kind)


def _counted(session: Session, run_id: str, number: int, kind: str) -> int:
    which = {"run_id": run_id, "round": number, "kind": kind}
    return session.connection().scalar(_COUNTED, which) or 0
