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
from coordinator.task_rows import end_tasks, key_of, of_phase
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


def count_result(session: Session, row: TaskRow, phase: PhaseRow, now: float) -> None:
    """Count a result that is being accepted: in its own round, or in the one that is open."""
    counting: PhaseRow | None = phase
    if phase.asynchronous:
        is_open = (PhaseRow.run_id == row.run_id, PhaseRow.kind == row.kind)
        counting = session.scalar(select(PhaseRow).where(*is_open, PhaseRow.closed.is_(False)))
    # Between two rounds nobody counts; the next round begins with what came meanwhile.
    if counting is not None and not _has_counted(session, counting, row.device_id):
        row.counted_round = counting.round_number
        session.flush()
        _close_if_full(session, counting, now)


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
            _close_if_full(session, phase, now)


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
        results=_counted(session, phase),
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


def _close_if_full(session: Session, phase: PhaseRow, now: float) -> None:
    if phase.goal and _counted(session, phase) >= phase.goal:
        close(session, phase, LateReason.GOAL_REACHED, now)


def _counted(session: Session, phase: PhaseRow) -> int:
    which = {"run_id": phase.run_id, "round": phase.round_number, "kind": phase.kind}
    return session.scalar(_COUNTED, which) or 0
