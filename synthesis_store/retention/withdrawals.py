"""Devices whose consent was taken back: out of open pools at once, of snapshots from the next on.

A snapshot that is sealed stays as it is, for a run may be at work with it; what it has of the
device is erased with the last snapshot that has it, and the log says when that was.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Engine,
    Exists,
    SQLColumnExpression,
    distinct,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.orm import Session

from hfmds.domain.digest import Digest
from hfmds.domain.pools import PoolState, Withdrawal
from hfmds.errors import NotAllowed
from hfmds.storage.database import transaction
from synthesis_store.access.pseudonyms import Identity
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.pool_totals import take_out
from synthesis_store.retention.blob_references import Contents, is_being_erased, loosen
from synthesis_store.tables import (
    BatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
    WithdrawalRow,
)

WITHDRAWN = "withdrawn"
"""Why content is erased."""


class Withdrawals:
    """Takes devices out."""

    def __init__(
        self,
        engine: Engine,
        contents: Contents,
        events: StoreEvents,
        identity: Identity,
        now: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._contents = contents
        self._events = events
        self._identity = identity
        self._now = now

    def withdraw(self, device_id: str, run_id: str, by: str) -> Withdrawal:
        """Take a device out of one run, or of all if it is empty; repeating it changes nothing."""
        removed: list[Digest] = []
        with transaction(self._engine) as session:
            row = session.get(WithdrawalRow, (device_id, run_id))
            if row is None:
                row = WithdrawalRow(
                    device_id=device_id,
                    run_id=run_id,
                    contributor=self._identity.pseudonym(device_id),
                    withdrawn_at=self._now(),
                )
                session.add(row)
                for pool, batch in _batches_in_open_pools(session, device_id, run_id):
                    take_out(pool, batch)
                    session.delete(batch)
                    loosen(session.connection(), batch.digest, WITHDRAWN)
                    removed.append(batch.digest)
                self._events.append(
                    session,
                    StoreEventKind.DEVICE_WITHDRAWN,
                    contributor=row.contributor,
                    run=run_id,
                    batches=len(removed),
                    by=by,
                )
            remaining = _remaining_snapshots(session, row)
        self._contents.sweep(removed)
        self.settle()
        return Withdrawal(len(removed), remaining)

    def settle(self) -> None:
        """Say in the log of which withdrawn devices nothing is left."""
        with transaction(self._engine) as session:
            if session.scalar(select(is_being_erased())):
                return  # some of it may be theirs, and still here; whoever sweeps it settles
            pending = select(WithdrawalRow).where(WithdrawalRow.erased_at.is_(None))
            for row in session.scalars(pending.order_by(WithdrawalRow.device_id)):
                if not _remaining_snapshots(session, row):
                    row.erased_at = self._now()
                    self._events.append(
                        session,
                        StoreEventKind.WITHDRAWAL_COMPLETE,
                        contributor=row.contributor,
                        run=row.run_id,
                    )


def is_withdrawn(device_id: SQLColumnExpression[str], run_id: SQLColumnExpression[str]) -> Exists:
    """For a query: whether the device was withdrawn from the run, or from all."""
    here = WithdrawalRow.device_id == device_id
    return select(WithdrawalRow).where(here, _concerns(run_id)).exists()


def refusal_of_withdrawn(device_id: str) -> NotAllowed:
    """The answer to a device that was withdrawn."""
    return NotAllowed(
        f"device {device_id} was withdrawn from this store; it may contribute no more"
    )


def withdrawn_devices(session: Session, run_id: str, most: int) -> list[str]:
    """Who may contribute nothing more to the run, by device id; at most so many."""
    query = select(WithdrawalRow.device_id).where(_concerns(literal(run_id))).distinct()
    return sorted(session.scalars(query.order_by(WithdrawalRow.device_id).limit(most)))


def withdrawn_contributors(session: Session, run_id: str) -> frozenset[str]:
    """Whose samples may be in no further snapshot of the run, by pseudonym."""
    query = select(WithdrawalRow.contributor).where(_concerns(literal(run_id)))
    return frozenset(session.scalars(query))


def _concerns(run_id: SQLColumnExpression[str]) -> ColumnElement[bool]:
    return or_(WithdrawalRow.run_id == "", WithdrawalRow.run_id == run_id)


def _batches_in_open_pools(
    session: Session, device_id: str, run_id: str
) -> list[tuple[PoolRow, BatchRow]]:
    query = (
        select(PoolRow, BatchRow)
        .join(BatchRow)
        .join(RunReferenceRow)
        .where(BatchRow.device_id == device_id, PoolRow.state == PoolState.OPEN.name)
    )
    if run_id:
        query = query.where(RunReferenceRow.run_id == run_id)
    return [(pool, batch) for pool, batch in session.execute(query)]


def _remaining_snapshots(session: Session, row: WithdrawalRow) -> int:
    """How many sealed snapshots still have something of the device."""
    query = select(func.count(distinct(ShardRow.snapshot_id))).where(
        ShardRow.contributor == row.contributor
    )
    if row.run_id:
        query = (
            query.join(SnapshotRow)
            .join(PoolRow)
            .join(RunReferenceRow)
            .where(RunReferenceRow.run_id == row.run_id)
        )
    return session.scalar(query) or 0
