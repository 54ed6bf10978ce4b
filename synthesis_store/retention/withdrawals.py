"""Devices that took their consent back.

A withdrawal removes the device's batches from open pools at once and keeps its samples out of all
later snapshots. A sealed snapshot does not change, because a run may be using it. The store deletes
the device's content in it together with the last snapshot that has it. Then the event log says so.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Engine, distinct, func, select
from sqlalchemy.orm import Session

from hfmds.domain.digest import Digest
from hfmds.domain.pools import PoolState, Withdrawal
from hfmds.storage.database import write_session
from synthesis_store.content.orphans import Orphans
from synthesis_store.contributors.store_identity import StoreIdentity
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.pool_totals import subtract_batch
from synthesis_store.tables import (
    BatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
    WithdrawalRow,
)

WITHDRAWN = "withdrawn"
"""The reason in the event log for deleted content."""


class Withdrawals:
    """Withdraws devices and notices when nothing of them is left."""

    def __init__(
        self,
        engine: Engine,
        orphans: Orphans,
        events: StoreEvents,
        identity: StoreIdentity,
        now: Callable[[], datetime],
    ) -> None:
        self._engine = engine
        self._orphans = orphans
        self._events = events
        self._identity = identity
        self._now = now

    def withdraw(self, device_id: str, run_id: str, by: str) -> Withdrawal:
        """Withdraw a device from one run, or from all if `run_id` is empty.

        Repeating a withdrawal changes nothing.
        """
        removed: list[Digest] = []
        with write_session(self._engine) as session:
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
                    subtract_batch(pool, batch)
                    session.delete(batch)
                    self._orphans.add(session, batch.digest, WITHDRAWN)
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
        self._orphans.delete(removed)
        self.complete()
        return Withdrawal(len(removed), remaining)

    def complete(self) -> None:
        """Write to the event log which withdrawn devices have no content left."""
        with write_session(self._engine) as session:
            if self._orphans.has_due(session):
                return  # some of it may be theirs; the next sweep deletes it and asks again
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
    """Return how many sealed snapshots have samples of the device."""
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
