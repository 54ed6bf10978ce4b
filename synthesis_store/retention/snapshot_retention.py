"""Decides how long the store keeps snapshots, and removes the others.

The store keeps the newest snapshots of each run that is not released, and the snapshots that such
a run has named. It removes each other snapshot in its own transaction. Its content is an
orphan from then on (`orphans.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine, Select, delete, func, select
from sqlalchemy.orm import Session, aliased

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Collected, PoolState
from hfmds.storage.database import read_session, write_session
from hfmds.wire.conversions.records import decode_snapshot
from synthesis_store.content.orphans import Orphans
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.pool_records import PoolRecords
from synthesis_store.tables import (
    BatchRow,
    NamedBatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
)

COLLECTED = "collected"
"""The reason in the event log for deleted content."""

MAX_COLLECTED = 1000
"""The most snapshots that one collection removes."""


class SnapshotRetention:
    """Releases runs and removes snapshots that no run needs. Methods block."""

    def __init__(
        self,
        engine: Engine,
        orphans: Orphans,
        events: StoreEvents,
        pools: PoolRecords,
        keep_snapshots: int,
    ) -> None:
        self._engine = engine
        self._orphans = orphans
        self._events = events
        self._pools = pools
        self._keep_snapshots = keep_snapshots

    def release(self, run_id: str, by: str) -> int:
        """Give up all pools and snapshots that a run has now. Returns the number of snapshots.

        Abandons the run's open pools, because nobody will seal them.
        """
        with write_session(self._engine) as session:
            query = select(RunReferenceRow).where(RunReferenceRow.run_id == run_id)
            run = session.scalar(query.where(~RunReferenceRow.released))
            if run is None:
                return 0
            run.released = True
            pools = select(PoolRow).where(PoolRow.run_number == run.number)
            open_pools = session.scalars(pools.where(PoolRow.state == PoolState.OPEN.name)).all()
            given_up = [
                digest
                for pool in open_pools
                for digest in self._pools.end(
                    session, pool, PoolState.ABANDONED, "its run was released"
                )
            ]
            count = select(func.count()).select_from(SnapshotRow).join(PoolRow)
            snapshots = session.scalar(count.where(PoolRow.run_number == run.number)) or 0
            self._events.append(
                session, StoreEventKind.RUN_RELEASED, run=run_id, snapshots=snapshots, by=by
            )
        self._orphans.delete(given_up)
        return snapshots

    def collect(self, by: str, *, dry_run: bool = False) -> Collected:
        """Remove the snapshots that no run needs, oldest first, and their content."""
        with read_session(self._engine) as session:
            unneeded = self._unneeded(session)[:MAX_COLLECTED]
            if dry_run:
                content = _only_in(unneeded).subquery()
                totals = select(func.count(), func.sum(content.c.size_bytes))
                blobs, size_bytes = session.execute(totals.select_from(content)).one()
                return Collected(tuple(unneeded), blobs, int(size_bytes or 0))
        removed = tuple(name for name in unneeded if self.collect_snapshot(name, by))
        self.forget_released_runs()
        erased = self._orphans.delete_due()
        return Collected(removed, erased.blobs, erased.size_bytes)

    def collect_snapshot(self, snapshot_id: str, by: str) -> bool:
        """Remove the rows of a snapshot if no run needs it. Returns whether it did."""
        with write_session(self._engine) as session:
            row = session.scalar(select(SnapshotRow).filter_by(snapshot_id=snapshot_id))
            if row is None or self._is_needed(session, row):
                return False
            snapshot = decode_snapshot(row.description)
            for content in session.execute(_only_in([snapshot_id])).all():
                digest = Digest(content.sha256, content.size_bytes)
                self._orphans.add(session, digest, COLLECTED)
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

    def forget_released_runs(self) -> None:
        """Remove the rows of released runs that have no snapshot.

        Rows of other runs stay, so that a late OpenPool cannot open an ended pool again.
        """
        with write_session(self._engine) as session:
            query = select(RunReferenceRow).where(RunReferenceRow.released)
            for run in session.scalars(query).all():
                pools = select(PoolRow.pool_id).where(PoolRow.run_number == run.number)
                snapshots = select(SnapshotRow).where(SnapshotRow.pool_id.in_(pools))
                if session.scalar(select(snapshots.exists())):
                    continue
                for pool_id in session.scalars(pools).all():
                    _forget_batches(session, pool_id)
                session.execute(delete(PoolRow).where(PoolRow.run_number == run.number))
                session.delete(run)

    def _unneeded(self, session: Session) -> list[str]:
        """Return the ids of snapshots that no run needs, oldest first."""
        newest_first = func.row_number().over(
            partition_by=PoolRow.run_number, order_by=SnapshotRow.number.desc()
        )
        ranked = (
            select(SnapshotRow.snapshot_id, newest_first.label("rank"))
            .join(PoolRow)
            .join(RunReferenceRow)
            .where(~RunReferenceRow.released)
            .subquery()
        )
        newest = select(ranked.c.snapshot_id).where(ranked.c.rank <= self._keep_snapshots)
        needed = _referenced(session) | set(session.scalars(newest))
        ids = session.scalars(select(SnapshotRow.snapshot_id).order_by(SnapshotRow.number))
        return [snapshot_id for snapshot_id in ids if snapshot_id not in needed]

    def _is_needed(self, session: Session, row: SnapshotRow) -> bool:
        """Return the same for one snapshot. Other writers wait for it, so it must be quick."""
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
    """Return the snapshots that runs have named and that are not released."""
    lists = session.scalars(select(RunReferenceRow.referenced).where(~RunReferenceRow.released))
    return {snapshot_id for names in lists for snapshot_id in names}


def _forget_batches(session: Session, pool_id: str) -> None:
    session.execute(delete(BatchRow).filter_by(pool_id=pool_id))
    session.execute(delete(NamedBatchRow).filter_by(pool_id=pool_id))


def _only_in(snapshot_ids: Sequence[str]) -> Select[str, int]:
    """Return the query for the content that nothing needs without these snapshots."""
    other = aliased(ShardRow)  # found by its index, because there are many shards
    elsewhere = select(other).where(
        other.sha256 == ShardRow.sha256, other.snapshot_id.not_in(snapshot_ids)
    )
    batches = select(BatchRow).join(PoolRow).where(PoolRow.state == PoolState.OPEN.name)
    in_pools = batches.where(BatchRow.sha256 == ShardRow.sha256)
    return (
        select(ShardRow.sha256, ShardRow.size_bytes)
        .where(ShardRow.snapshot_id.in_(snapshot_ids), ~elsewhere.exists(), ~in_pools.exists())
        .distinct()
    )
