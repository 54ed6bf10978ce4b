"""Which devices were withdrawn, and from which runs."""

from __future__ import annotations

from sqlalchemy import ColumnElement, SQLColumnExpression, literal, or_, select
from sqlalchemy.orm import Session

from synthesis_store.tables import WithdrawalRow


def is_withdrawn(
    device_id: ColumnElement[str], run_id: SQLColumnExpression[str]
) -> ColumnElement[bool]:
    """Return whether the device was withdrawn from the run, or from all runs."""
    withdrawal = select(WithdrawalRow).where(WithdrawalRow.device_id == device_id)
    return withdrawal.where(_concerns(run_id)).exists()


def withdrawn_devices(session: Session, run_id: str, limit: int) -> list[str]:
    """Return the ids of devices that cannot contribute to the run, at most `limit` of them."""
    query = select(WithdrawalRow.device_id).where(_concerns(literal(run_id))).distinct()
    return sorted(session.scalars(query.order_by(WithdrawalRow.device_id).limit(limit)))


def withdrawn_contributors(session: Session, run_id: str) -> frozenset[str]:
    """Return the pseudonyms of devices whose samples no later snapshot of the run can have."""
    query = select(WithdrawalRow.contributor).where(_concerns(literal(run_id)))
    return frozenset(session.scalars(query))


def _concerns(run_id: SQLColumnExpression[str]) -> ColumnElement[bool]:
    return or_(WithdrawalRow.run_id == "", WithdrawalRow.run_id == run_id)
