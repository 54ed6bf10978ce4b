"""How long snapshots stay: as long as a run needs them, and no longer than their collection takes.

A run that has not been released needs its newest snapshots, and those it has named. Of a released
run nothing is needed. Each snapshot is collected in a transaction of its own; its content is loose
from then on, and swept, also after a crash in between (`contents`).
"""

from __future__ import annotations

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.orm import Session, aliased

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Collected, PoolState
from hfmds.storage.database import reading, transaction
from hfmds.wire.conversions.records import decode_snapshot
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.pool_records import PoolRecords
from synthesis_store.retention.blob_references import Contents, Erased, loosen
from synthesis_store.retention.withdrawals import Withdrawals
from synthesis_store.tables import (
    BatchRow,
    NamedBatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
)

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
            if row is None or self._is_needed(session, row):  # meanwhile
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
        needed = self._needed(session)
        everything = session.scalars(select(SnapshotRow.snapshot_id).order_by(SnapshotRow.number))
        return [snapshot_id for snapshot_id in everything if snapshot_id not in needed]

    def _needed(self, session: Session) -> set[str]:
        """Of each run that is not released, the newest snapshots and those that it has named."""
        newest_first = func.row_number().over(
            partition_by=PoolRow.run_number, order_by=SnapshotRow.number.desc()
        )
        ranked = (
            select(SnapshotRow.snapshot_id, newest_first.label("place"))
            .join(PoolRow)
            .join(RunReferenceRow)
            .where(~RunReferenceRow.released)
            .subquery()
        )
        newest = select(ranked.c.snapshot_id).where(ranked.c.place <= self._keep_snapshots)
        return _referenced(session) | set(session.scalars(newest))

    def _is_needed(self, session: Session, row: SnapshotRow) -> bool:
        """The same of one snapshot, without looking at all of them while other writers wait."""
        run = session.scalar(
            select(RunReferenceRow).join(PoolRow).where(PoolRow.pool_id == row.pool_id)
        )
        if run is not None and not run.released:
            later = select(func.count()).select_from(SnapshotRow).join(PoolRow)
            later = later.where(PoolRow.run_number == run.number, SnapshotRow.number > row.number)
            if (session.scalar(later) or 0) < self._keep_snapshots:
                return True
        return row.snapshot_id in _referenced(session)


def _referenced(session: Session) -> set[str]:
    """Snapshots that runs have named, which are not released."""
    lists = session.scalars(select(RunReferenceRow.referenced).where(~RunReferenceRow.released))
    return {snapshot_id for names in lists for snapshot_id in names}


def _forget_batches(session: Session, pool_id: str) -> None:
    session.execute(delete(BatchRow).filter_by(pool_id=pool_id))
    session.execute(delete(NamedBatchRow).filter_by(pool_id=pool_id))


def _only_there(session: Session, snapshot_id: str) -> list[Digest]:
    """Content of a snapshot that no other has: of one that was taken over, little."""
    other = aliased(ShardRow)  # by its index: all shards of all snapshots are many
    elsewhere = select(other).where(
        other.sha256 == ShardRow.sha256, other.snapshot_id != ShardRow.snapshot_id
    )
    query = (
        select(ShardRow.sha256, ShardRow.size_bytes)
        .where(ShardRow.snapshot_id == snapshot_id, ~elsewhere.exists())
        .distinct()
    )
    return [Digest(row.sha256, row.size_bytes) for row in session.execute(query)]


def _only_in(session: Session, snapshot_ids: list[str]) -> Erased:
    """What would be erased with these snapshots."""
    other = aliased(ShardRow)
    elsewhere = select(other).where(
        other.sha256 == ShardRow.sha256, other.snapshot_id.not_in(snapshot_ids)
    )
    batches = select(BatchRow).join(PoolRow).where(PoolRow.state == PoolState.OPEN.name)
    in_pools = batches.where(BatchRow.sha256 == ShardRow.sha256)
    only = (
        select(ShardRow.sha256, ShardRow.size_bytes)
        .where(ShardRow.snapshot_id.in_(snapshot_ids), ~elsewhere.exists(), ~in_pools.exists())
        .distinct()
        .subquery()
    )
    blobs, size_bytes = session.execute(
        select(func.count(), func.sum(only.c.size_bytes)).select_from(only)
    ).one()
    return Erased(blobs, int(size_bytes or 0))
