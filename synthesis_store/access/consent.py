"""Which devices were withdrawn, and from which runs."""

from __future__ import annotations

from sqlalchemy import ColumnElement, SQLColumnExpression, literal, or_, select
from sqlalchemy.orm import Session

from hfmds.errors import NotAllowed
from synthesis_store.tables import RunReferenceRow, WithdrawalRow


def is_withdrawn(session: Session, device_id: str, run_number: int) -> bool:
    """Return whether the device was withdrawn from the run of a pool, or from all runs."""
    run_id = select(RunReferenceRow.run_id).where(RunReferenceRow.number == run_number)
    withdrawal = select(WithdrawalRow).where(
        WithdrawalRow.device_id == device_id, _concerns(run_id.scalar_subquery())
    )
    return session.scalar(select(withdrawal.exists())) is True


def refusal_of_withdrawn(device_id: str) -> NotAllowed:
    """Return the error for a withdrawn device that puts a batch."""
    return NotAllowed(f"device {device_id} was withdrawn from this store; it cannot contribute")


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
