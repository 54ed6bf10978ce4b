"""How long snapshots stay: as long as a run needs them, and no longer than their collection takes.

A run that has not been released needs its newest snapshots, and those it has named. Of a released
run nothing is needed. Each snapshot is collected in a transaction of its own; its content is loose
from then on, and swept, also after a crash in between (`contents`).
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session

from hfmds.digest import Digest
from hfmds.storage.database import reading, transaction
from hfmds.wire.records import decode_snapshot
from hfmds.wire.types import Collected, PoolState
from synthesis_store.contents import Contents, Erased, loosen
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pool_records import PoolRecords
from synthesis_store.tables import (
    BatchRow,
    NamedBatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
)
from synthesis_store.withdrawals import Withdrawals

COLLECTED = "collected"
"""Why content is erased."""

MOST_AT_ONCE = 1000  # snapshots that one collection removes


class Retention:
    """Removes what nobody needs."""

    def __init__(
        self,
        engine: Engine,
        contents: Contents,
        events: StoreEvents,
        pools: PoolRecords,
        withdrawals: Withdrawals,
        keep_snapshots: int,
    ) -> None:
        self._engine = engine
        self._contents = contents
        self._events = events
        self._pools = pools
        self._withdrawals = withdrawals
        self._keep_snapshots = keep_snapshots

    def release(self, run_id: str, by: str) -> int:
        """Give up all that a run has by now; the number of its snapshots that were needed till now.

        Its open pools are abandoned: nobody will seal them.
        """
        live = select(RunReferenceRow).where(RunReferenceRow.run_id == run_id)
        with transaction(self._engine) as session:
            run = session.scalar(live.where(~RunReferenceRow.released))
            if run is None:
                return 0
            run.released = True
            pools = select(PoolRow).where(PoolRow.run_number == run.number)
            given_up = [
                digest
                for pool in session.scalars(pools.where(PoolRow.state == PoolState.OPEN.name))
                for digest in self._pools.end(
                    session, pool, PoolState.ABANDONED, "its run was released"
                )
            ]
            count = select(func.count()).select_from(SnapshotRow).join(PoolRow)
            snapshots = session.scalar(count.where(PoolRow.run_number == run.number)) or 0
            self._events.append(
                session, StoreEventKind.RUN_RELEASED, run=run_id, snapshots=snapshots, by=by
            )
        self._contents.sweep(given_up)
        return snapshots

    def collect(self, by: str, *, dry_run: bool = False) -> Collected:
        """Remove the snapshots that nobody needs, oldest first, and content that is in no other."""
        with reading(self._engine) as session:
            doomed = self._unneeded(session)[:MOST_AT_ONCE]
            if dry_run:
                erased = _only_in(session, doomed)
                return Collected(tuple(doomed), erased.blobs, erased.size_bytes)
        collected = tuple(one for one in doomed if self.collect_snapshot(one, by))
        self.forget_released()
        erased = self._contents.sweep(self._contents.given_up())
        self._withdrawals.settle()
        return Collected(collected, erased.blobs, erased.size_bytes)

    def collect_snapshot(self, snapshot_id: str, by: str) -> bool:
        """Remove a snapshot, if nobody needs it; its content is loose then."""
        with transaction(self._engine) as session:
            row = session.scalar(select(SnapshotRow).filter_by(snapshot_id=snapshot_id))
            if row is None or snapshot_id in self._needed(session):  # meanwhile
                return False
            snapshot = decode_snapshot(row.description)
            for digest in _only_there(session, snapshot_id):
                loosen(session.connection(), digest, COLLECTED)
            session.execute(delete(ShardRow).filter_by(snapshot_id=snapshot_id))
            session.delete(row)
            _forget_batches(session, row.pool_id)
            self._events.append(
                session,
                StoreEventKind.SNAPSHOT_COLLECTED,
                snapshot=snapshot_id,
                pool=row.pool_id,
                run=snapshot.spec.run_id,
                samples=snapshot.samples,
                by=by,
            )
            return True

    def forget_released(self) -> None:
        """Remove the rows of released runs of which no snapshot is left.

        Those of other runs stay, so that a pool that is over is not opened anew by a late call.
        """
        with transaction(self._engine) as session:
            for run in session.scalars(select(RunReferenceRow).where(RunReferenceRow.released)):
                pools = select(PoolRow.pool_id).where(PoolRow.run_number == run.number)
                left = select(SnapshotRow).where(SnapshotRow.pool_id.in_(pools))
                if session.scalar(select(left.exists())):
                    continue
                for pool_id in session.scalars(pools).all():
                    _forget_batches(session, pool_id)
                session.execute(delete(PoolRow).where(PoolRow.run_number == run.number))
                session.delete(run)

    def _unneeded(self, session: Session) -> list[str]:
        needed = set(self._needed(session))
        everything = session.scalars(select(SnapshotRow.snapshot_id).order_by(SnapshotRow.number))
        return [snapshot_id for snapshot_id in everything if snapshot_id not in needed]

    def _needed(self, session: Session) -> Iterator[str]:
        for run in session.scalars(select(RunReferenceRow).where(~RunReferenceRow.released)):
            yield from run.referenced
            newest = (
                select(SnapshotRow.snapshot_id)
                .join(PoolRow)
                .where(PoolRow.run_number == run.number)
                .order_by(SnapshotRow.number.desc())
            )
            yield from session.scalars(newest.limit(self._keep_snapshots))


def _forget_batches(session: Session, pool_id: str) -> None:
    session.execute(delete(BatchRow).filter_by(pool_id=pool_id))
    session.execute(delete(NamedBatchRow).filter_by(pool_id=pool_id))


def _only_there(session: Session, snapshot_id: str) -> list[Digest]:
    """Content of a snapshot that no other has: of one that was taken over, little."""
    elsewhere = select(ShardRow.sha256).where(ShardRow.snapshot_id != snapshot_id)
    query = (
        select(ShardRow.sha256, ShardRow.size_bytes)
        .where(ShardRow.snapshot_id == snapshot_id, ShardRow.sha256.not_in(elsewhere))
        .distinct()
    )
    return [Digest(row.sha256, row.size_bytes) for row in session.execute(query)]


def _only_in(session: Session, snapshot_ids: list[str]) -> Erased:
    """What would be erased with these snapshots."""
    doomed = ShardRow.snapshot_id.in_(snapshot_ids)
    elsewhere = select(ShardRow.sha256).where(~doomed)
    batches = select(BatchRow.sha256).join(PoolRow).where(PoolRow.state == PoolState.OPEN.name)
    only = (
        select(ShardRow.sha256, ShardRow.size_bytes)
        .where(doomed, ShardRow.sha256.not_in(elsewhere), ShardRow.sha256.not_in(batches))
        .distinct()
        .subquery()
    )
    blobs, size_bytes = session.execute(
        select(func.count(), func.sum(only.c.size_bytes)).select_from(only)
    ).one()
    return Erased(blobs, int(size_bytes or 0))
