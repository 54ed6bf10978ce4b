"""The models a run has made: which is the best, which are kept, and whether it learns no more.

Decided within the transaction that records a round, from the rounds alone: a coordinator that is
started again comes to the same.
"""

from __future__ import annotations

from sqlalchemy import Connection, Select, or_, select
from sqlalchemy.orm import Session

from coordinator.records.events import append_event
from coordinator.records.states import RoundState, TaskState
from coordinator.records.tables import PhaseRow, RoundRow, TaskRow
from coordinator.records.tasks import PENDING_NAMES
from hfmds.domain.events import EventKind
from hfmds.domain.round_policy import EarlyStop, Retention
from hfmds.errors import NotFound


def best_round(session: Session, run_id: str) -> int:
    """The evaluated round with the highest accuracy, the first of equals; 0 without one."""
    best = (
        select(RoundRow.number)
        .where(RoundRow.run_id == run_id, RoundRow.accuracy.is_not(None))
        .order_by(RoundRow.accuracy.desc(), RoundRow.number)
        .limit(1)
    )
    return session.scalar(best) or 0


def reason_to_stop(session: Session, run_id: str, early_stop: EarlyStop | None) -> str:
    """Why a run is to end before its last round; empty: it is not."""
    if early_stop is None:
        return ""
    measured = (
        select(RoundRow.accuracy)
        .where(RoundRow.run_id == run_id, RoundRow.accuracy.is_not(None))
        .order_by(RoundRow.number)
    )
    accuracies = [accuracy for accuracy in session.scalars(measured) if accuracy is not None]
    if not early_stop.exhausted(accuracies):
        return ""
    by = f" by more than {early_stop.min_improvement:.1%}" if early_stop.min_improvement else ""
    return (
        f"stopped early: accuracy has not risen{by} in {early_stop.patience_rounds} evaluated "
        f"rounds; the best is {max(accuracies):.1%} after round {best_round(session, run_id)}"
    )


def drop_models(session: Session, run_id: str, last: int, retention: Retention, now: float) -> None:
    """Mark the models that are not kept any more; their content goes once that is durable.

    What devices are still at work with stays until they are done: their results count from it.
    """
    if retention.keeps_all:  # and need not be looked at, of which there are more and more
        return
    best, needed = best_round(session, run_id), _at_work_with(session.connection(), run_id)
    for row in session.scalars(_with_model(run_id)):
        kept = retention.keeps(row.number, last, best)
        if not kept and row.weights_sha256 not in needed:
            row.model_dropped = True
            model = {"round": row.number, "model": row.weights_sha256}
            append_event(session.connection(), run_id, EventKind.MODEL_DROPPED, now, **model)
    session.flush()


def dropped_content(connection: Connection, run_id: str) -> set[str]:
    """SHA-256 of the models that are dropped; not of one that another round made again."""
    marked = select(RoundRow.weights_sha256).where(
        RoundRow.run_id == run_id, RoundRow.model_dropped.is_(True)
    )
    dropped = set(connection.scalars(marked))
    if not dropped:
        return dropped
    kept = connection.execute(
        _with_model(run_id).with_only_columns(RoundRow.number, RoundRow.weights_sha256)
    ).all()
    # An update of the round in progress may have the very bytes of an old model.
    last = max((row.number for row in kept), default=0)
    updates = select(TaskRow.result_sha256).where(
        TaskRow.run_id == run_id,
        TaskRow.state == TaskState.ACCEPTED.name,
        or_(TaskRow.counted_round == 0, TaskRow.counted_round > last),
    )
    needed = {row.weights_sha256 for row in kept} | set(connection.scalars(updates))
    return dropped - needed - _at_work_with(connection, run_id)


def require_kept(session: Session, row: RoundRow) -> None:
    """Refuse a model that was dropped, and say which are left."""
    if not row.model_dropped:
        return
    numbers = [str(kept.number) for kept in session.scalars(_with_model(row.run_id))]
    raise NotFound(
        f"the model of run {row.run_id!r} after round {row.number} is not kept any more; "
        f"kept are those after rounds {', '.join(numbers)}"
    )


def _with_model(run_id: str) -> Select[RoundRow]:
    """A run's rounds whose model is there, in order."""
    return (
        select(RoundRow)
        .where(
            RoundRow.run_id == run_id,
            RoundRow.state == RoundState.COMPLETED.name,
            RoundRow.model_dropped.is_(False),
        )
        .order_by(RoundRow.number)
    )


def _at_work_with(connection: Connection, run_id: str) -> set[str]:
    """SHA-256 of the models that tasks began at whose results may still count."""
    waiting = (TaskRow.state == TaskState.ACCEPTED.name) & (TaskRow.counted_round == 0)
    began_at = (
        select(PhaseRow.weights_sha256)
        .join(
            TaskRow,
            (TaskRow.run_id == PhaseRow.run_id)
            & (TaskRow.round_number == PhaseRow.round_number)
            & (TaskRow.kind == PhaseRow.kind),
        )
        .where(PhaseRow.run_id == run_id, or_(TaskRow.state.in_(PENDING_NAMES), waiting))
        .distinct()
    )
    return set(connection.scalars(began_at))
