"""The store's memory: pools, batches, snapshots, and which content they need.

Every change is one transaction: it happens whole or not at all, whenever the process is killed.
Content is written before the row that needs it. What might be left over in between is noted as
loose beforehand, so that `sweep` finds it. Deleting content and beginning to need it both happen
in transactions that take turns: neither can slip past the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, func, select, union
from sqlalchemy.orm import Session

from hfmds.digest import Digest
from hfmds.errors import Conflict, NotFound, TooLate, Unavailable
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import reading, transaction
from hfmds.wire.records import decode_pool_spec
from hfmds.wire.types import Contribution, PoolSpec, Snapshot
from synthesis_store.tables import (
    BatchRow,
    LooseBlobRow,
    NamedBatchRow,
    PoolRow,
    ShardRow,
    SnapshotRow,
    StoreRow,
    pool_row,
    snapshot_of,
    snapshot_rows,
)

_THE_STORE = 1  # id of the only row in its table


@dataclass(frozen=True, slots=True, order=True)
class BatchKey:
    """Names a device's batch in a pool: the idempotency key of putting it."""

    pool_id: str
    device_id: str
    digest: Digest


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as it was opened, and whether it is sealed."""

    spec: PoolSpec
    sealed: bool


@dataclass(frozen=True, slots=True)
class Sealed:
    """What sealing a pool gave: a snapshot, and what was named but not in the pool."""

    snapshot: Snapshot
    missing: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """How much the store holds."""

    open_pools: int
    sealed_pools: int
    content_bytes: int


class Ledger:
    """Rows and the content they stand for, kept in agreement."""

    def __init__(self, engine: Engine, blobs: Blobs, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._blobs = blobs
        self._now = now

    def pseudonym_key(self) -> bytes:
        """The secret that hides device ids; made once in the store's life."""
        with transaction(self._engine) as session:
            row = session.get(StoreRow, _THE_STORE)
            if row is None:
                row = StoreRow(id=_THE_STORE, pseudonym_key=secrets.token_bytes(32))
                session.add(row)
            return row.pseudonym_key

    def inventory(self) -> Inventory:
        """Totals over everything; looks at every row, so ask seldom."""
        content = union(
            select(BatchRow.sha256, BatchRow.size_bytes).join(PoolRow).where(~PoolRow.sealed),
            select(ShardRow.sha256, ShardRow.size_bytes),
        ).subquery()
        pools = select(func.count()).select_from(PoolRow)
        with reading(self._engine) as session:
            return Inventory(
                open_pools=session.scalar(pools.where(~PoolRow.sealed)) or 0,
                sealed_pools=session.scalar(pools.where(PoolRow.sealed)) or 0,
                content_bytes=int(session.scalar(select(func.sum(content.c.size_bytes))) or 0),
            )

    # --- pools and batches ----------------------------------------------------------------------

    def open_pool(self, pool_id: str, spec: PoolSpec) -> bool:
        """Open the pool; false if it had been opened with the same specification."""
        with transaction(self._engine) as session:
            row = session.get(PoolRow, pool_id)
            if row is None:
                session.add(pool_row(pool_id, spec, self._now()))
                return True
            if decode_pool_spec(row.spec) != spec:
                raise Conflict(f"pool {pool_id} was opened before with another specification")
            return False

    def pool(self, pool_id: str) -> PoolState:
        """The pool, or NotFound."""
        with reading(self._engine) as session:
            row = _pool(session, pool_id)
            return PoolState(decode_pool_spec(row.spec), row.sealed)

    def has_batch(self, key: BatchKey) -> bool:
        """Whether this is the device's batch in the pool."""
        with reading(self._engine) as session:
            row = session.get(BatchRow, (key.pool_id, key.device_id))
            return row is not None and _digest(row) == key.digest

    def record_batch(self, key: BatchKey, samples: int) -> bool:
        """Make stored content the device's batch, in place of an earlier one.

        False if it was that already. TooLate if the pool is sealed.
        """
        replaced: list[Digest] = []
        with transaction(self._engine) as session:
            pool = _pool(session, key.pool_id)
            row = session.get(BatchRow, (key.pool_id, key.device_id))
            if row is not None and _digest(row) == key.digest:
                return False
            if pool.sealed:
                raise pool_is_sealed(key.pool_id)
            self._claim(session, key.digest)
            if row is None:
                row = BatchRow(pool_id=key.pool_id, device_id=key.device_id)
                session.add(row)
            else:
                replaced.append(_digest(row))
                _loosen(session, _digest(row))
            row.sha256, row.size_bytes = key.digest.sha256, key.digest.size_bytes
            row.samples = samples
            row.accepted_at = self._now()
        if replaced:
            self.sweep(replaced)
        return True

    # --- snapshots ------------------------------------------------------------------------------

    def present(self, pool_id: str, named: Set[Contribution]) -> list[Contribution]:
        """Those of the named batches that are in the pool, by device id."""
        with reading(self._engine) as session:
            return _present(session, pool_id, named)

    def sealed(self, pool_id: str, named: Set[Contribution]) -> Sealed | None:
        """What sealing gave; None while the pool is open; Conflict if others were named."""
        with reading(self._engine) as session:
            return _sealed(session, pool_id, named)

    def record_snapshot(
        self, snapshot: Snapshot, named: Set[Contribution], merged: Sequence[Contribution]
    ) -> Sealed:
        """Seal the pool into this snapshot of the merged ones; one that was sealed before stays.

        Batches whose content is not a shard are then known by name only. Unavailable if those
        that are in the pool are no longer the merged ones.
        """
        shards = {shard.digest for shard in snapshot.shards}
        left_out: list[Digest] = []
        with transaction(self._engine) as session:
            existing = _sealed(session, snapshot.pool_id, named)
            if existing is not None:
                return existing
            if _present(session, snapshot.pool_id, named) != list(merged):
                raise Unavailable(
                    f"the batches of pool {snapshot.pool_id} changed while it was sealed; try again"
                )
            for digest in shards:
                self._claim(session, digest)
            snapshot_row, shard_rows = snapshot_rows(snapshot)
            session.add(snapshot_row)
            session.flush()  # the shards' foreign key needs it
            session.add_all(shard_rows)
            session.add_all(_named_row(snapshot.pool_id, item) for item in named)
            _pool(session, snapshot.pool_id).sealed = True
            for row in _batches(session, snapshot.pool_id):
                if _digest(row) not in shards:
                    left_out.append(_digest(row))
                    _loosen(session, _digest(row))
        self.sweep(left_out)
        return Sealed(snapshot, _missing(named, merged))

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """The snapshot with its shards, or NotFound."""
        with reading(self._engine) as session:
            return _snapshot(session, _snapshot_row(session, snapshot_id))

    def snapshots(self, run_id: str | None = None, limit: int | None = None) -> list[Snapshot]:
        """Snapshots of one run, or of all, newest first and without shards."""
        query = select(SnapshotRow, PoolRow).join(PoolRow).order_by(SnapshotRow.number.desc())
        if run_id is not None:
            query = query.where(PoolRow.run_id == run_id)
        with reading(self._engine) as session:
            return [snapshot_of(row, pool) for row, pool in session.execute(query.limit(limit))]

    def require_shard(self, snapshot_id: str, digest: Digest) -> None:
        """NotFound unless the snapshot has this shard."""
        query = select(ShardRow).filter_by(
            snapshot_id=snapshot_id, sha256=digest.sha256, size_bytes=digest.size_bytes
        )
        with reading(self._engine) as session:
            _snapshot_row(session, snapshot_id)
            if session.scalar(query) is None:
                raise NotFound(f"snapshot {snapshot_id} has no shard {digest}")

    # --- content --------------------------------------------------------------------------------

    def expect_content(self, digest: Digest) -> None:
        """Note, before content is written, that it may come to be here and belong to nothing."""
        with transaction(self._engine) as session:
            _loosen(session, digest)

    def sweep(self, digests: Iterable[Digest] | None = None) -> int:
        """Delete loose content that nothing needs, of all or of these; the number of blobs.

        An upload of the same content that is under way finds it gone and has to be repeated.
        """
        deleted = 0
        with transaction(self._engine) as session:
            if digests is None:
                rows = list(session.scalars(select(LooseBlobRow)))
            else:
                found = (session.get(LooseBlobRow, (d.sha256, d.size_bytes)) for d in digests)
                rows = [row for row in found if row is not None]
            for row in rows:
                if not _is_needed(session, row.sha256):
                    self._blobs.delete(_digest(row))
                    deleted += 1
                session.delete(row)
        return deleted

    def _claim(self, session: Session, digest: Digest) -> None:
        """From now on the content is needed: it must be here, and is not loose."""
        if not self._blobs.contains(digest):
            raise Unavailable(f"content {digest} was removed meanwhile; send it again")
        row = session.get(LooseBlobRow, (digest.sha256, digest.size_bytes))
        if row is not None:
            session.delete(row)


def pool_is_sealed(pool_id: str) -> TooLate:
    """The answer to a device that comes after sealing."""
    return TooLate(f"pool {pool_id} is sealed; check in for new work")


def _pool(session: Session, pool_id: str) -> PoolRow:
    row = session.get(PoolRow, pool_id)
    if row is None:
        raise NotFound(f"there is no pool {pool_id}; the coordinator opens it")
    return row


def _batches(session: Session, pool_id: str) -> list[BatchRow]:
    return list(session.scalars(select(BatchRow).filter_by(pool_id=pool_id)))


def _present(session: Session, pool_id: str, named: Set[Contribution]) -> list[Contribution]:
    # Sorted here: databases differ in how they order text.
    return sorted(named & set(map(_contribution, _batches(session, pool_id))))


def _missing(named: Set[Contribution], present: Iterable[Contribution]) -> tuple[Contribution, ...]:
    return tuple(sorted(named - set(present)))


def _sealed(session: Session, pool_id: str, named: Set[Contribution]) -> Sealed | None:
    if not _pool(session, pool_id).sealed:
        return None
    rows = session.scalars(select(NamedBatchRow).filter_by(pool_id=pool_id))
    if set(map(_contribution, rows)) != named:
        raise Conflict(f"pool {pool_id} was sealed before with other batches")
    row = session.scalars(select(SnapshotRow).filter_by(pool_id=pool_id)).one()
    # The batches of a sealed pool stay as they were, so the same ones are missing ever after.
    missing = _missing(named, _present(session, pool_id, named))
    return Sealed(_snapshot(session, row), missing)


def _snapshot_row(session: Session, snapshot_id: str) -> SnapshotRow:
    row = session.scalar(select(SnapshotRow).filter_by(snapshot_id=snapshot_id))
    if row is None:
        raise NotFound(f"there is no snapshot {snapshot_id}")
    return row


def _snapshot(session: Session, row: SnapshotRow) -> Snapshot:
    shards = session.scalars(
        select(ShardRow).filter_by(snapshot_id=row.snapshot_id).order_by(ShardRow.position)
    )
    return snapshot_of(row, _pool(session, row.pool_id), list(shards))


def _is_needed(session: Session, sha256: str) -> bool:
    # By hash alone: a name with a wrong size must not get another's content deleted.
    batch = select(BatchRow).join(PoolRow).where(~PoolRow.sealed, BatchRow.sha256 == sha256)
    shard = select(ShardRow).where(ShardRow.sha256 == sha256)
    return session.scalar(select(batch.exists() | shard.exists())) is True


def _loosen(session: Session, digest: Digest) -> None:
    session.merge(LooseBlobRow(sha256=digest.sha256, size_bytes=digest.size_bytes))


def _named_row(pool_id: str, named: Contribution) -> NamedBatchRow:
    return NamedBatchRow(
        pool_id=pool_id,
        device_id=named.device_id,
        sha256=named.batch.sha256,
        size_bytes=named.batch.size_bytes,
    )


def _contribution(row: BatchRow | NamedBatchRow) -> Contribution:
    return Contribution(row.device_id, _digest(row))


def _digest(row: BatchRow | NamedBatchRow | LooseBlobRow) -> Digest:
    return Digest(row.sha256, row.size_bytes)
