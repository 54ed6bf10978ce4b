"""Snapshots and their shards in the database. Every change is one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, undefer

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Contribution, PoolSpec, PoolState, Shard, Snapshot
from hfmds.errors import Conflict, NotFound, Unavailable, WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import read_session, write_session
from hfmds.wire.conversions.records import (
    decode_pool_spec,
    decode_shard,
    decode_snapshot,
    encode_shard,
    encode_snapshot,
)
from synthesis_store.content.orphans import Orphans
from synthesis_store.contributors.consent import withdrawn_contributors
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.leakage_gate import Percentiles
from synthesis_store.pools.pool_records import batches_of, require_pool
from synthesis_store.states import POOL_TRANSITIONS
from synthesis_store.tables import (
    BatchRow,
    NamedBatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
)

_MAX_NAMED = 100  # for more shards, the query returns all shards of the snapshot


@dataclass(frozen=True, slots=True)
class SealedPool:
    """The snapshot of a pool, and the named batches that the pool did not have."""

    snapshot: Snapshot
    missing: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class KnownShard:
    """A shard with the hash and the measurements of each sample."""

    shard: Shard
    hashes: bytes
    measurements: bytes


@dataclass(frozen=True, slots=True)
class SealInput:
    """What a snapshot is made of, as it was when the builder began."""

    pool_id: str
    spec: PoolSpec
    present: tuple[Contribution, ...]  # the named batches that the pool has, by device id
    new_samples: int  # in these
    leaking_batches: int = field(compare=False)  # refused uploads can raise it at any time
    parent_snapshot_id: str  # the run's snapshot before; empty: none
    withdrawn: frozenset[str]  # contributors whose samples must not be carried over


@dataclass(frozen=True, slots=True)
class BuiltSnapshot:
    """A snapshot whose shards are stored but that is in no table yet."""

    snapshot: Snapshot
    shards: tuple[KnownShard, ...]
    written: frozenset[Digest]  # the shards that the builder wrote for it
    percentiles: Sequence[Percentiles]  # of its new samples, and of all


class SnapshotRecords:
    """The rows of sealed pools."""

    def __init__(self, engine: Engine, orphans: Orphans, events: StoreEvents) -> None:
        self._engine = engine
        self._orphans = orphans
        self._events = events

    # --- sealing --------------------------------------------------------------------------------

    def batches(self, pool_id: str) -> list[Contribution]:
        """Return all batches of a pool, by device id."""
        with read_session(self._engine) as session:
            return sorted(map(_contribution, batches_of(session, pool_id)))

    def sealed(self, pool_id: str, named: Set[Contribution]) -> SealedPool | None:
        """Return the sealed pool, or None while it is open.

        Raises Conflict if it was sealed with other named batches.
        """
        with read_session(self._engine) as session:
            return _sealed(session, pool_id, named)

    def seal_input(self, pool_id: str, named: Set[Contribution]) -> SealInput:
        """Return what a snapshot of the named batches would be made of now."""
        with read_session(self._engine) as session:
            return _seal_input(session, pool_id, named)

    def known_shards(self, snapshot_id: str) -> list[KnownShard]:
        """Return the shards of a snapshot with the facts about their samples."""
        query = (
            select(ShardRow)
            .filter_by(snapshot_id=snapshot_id)
            .order_by(ShardRow.position)
            .options(undefer(ShardRow.hashes), undefer(ShardRow.measurements))
        )
        with read_session(self._engine) as session:
            return [
                KnownShard(decode_shard(row.description), row.hashes, row.measurements)
                for row in session.scalars(query)
            ]

    def record(
        self, built: BuiltSnapshot, named: Set[Contribution], seal_input: SealInput
    ) -> SealedPool:
        """Seal the pool into this snapshot, or return the snapshot it was sealed into before.

        The store deletes batches whose content is not a shard and keeps their rows. Raises
        Unavailable if the input has changed since the builder began.
        """
        snapshot, pool_id = built.snapshot, built.snapshot.pool_id
        needed = {known.shard.digest for known in built.shards}
        left_out: list[Digest] = []
        with write_session(self._engine) as session:
            existing = _sealed(session, pool_id, named)
            if existing is not None:
                return existing
            if _seal_input(session, pool_id, named) != seal_input:
                raise Unavailable(f"pool {pool_id} changed while it was sealed; try again")
            # The pool and the snapshot before need all other shards, so those cannot be deleted.
            self._orphans.rescue(session, built.written)
            _add_rows(session, built, named)
            pool = require_pool(session, pool_id)
            what = f"pool {pool_id}"
            require_transition(POOL_TRANSITIONS, PoolState[pool.state], PoolState.SEALED, what)
            pool.state = PoolState.SEALED.name
            for row in batches_of(session, pool_id):
                if row.digest not in needed:
                    left_out.append(row.digest)
                    self._orphans.add(session, row.digest)
            self._events.append(
                session,
                StoreEventKind.POOL_SEALED,
                pool=pool_id,
                snapshot=snapshot.snapshot_id,
                devices=len(seal_input.present),
                samples=snapshot.samples,
                carried=snapshot.carried_samples,
                duplicates=snapshot.duplicates,
            )
        self._orphans.delete(left_out)
        return SealedPool(snapshot, _missing(named, seal_input.present))

    # --- serving --------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: str, start: int = 0, most: int | None = None) -> Snapshot:
        """Return a snapshot with its shards, at most `most` of them from `start` on.

        Raises NotFound if there is none.
        """
        with read_session(self._engine) as session:
            return _snapshot(session, _snapshot_row(session, snapshot_id), start, most)

    def snapshots(
        self, run_id: str | None = None, after: str = "", most: int | None = None
    ) -> list[Snapshot]:
        """Return snapshots of one run, or of all, newest first and without shards.

        With `after`, those behind that snapshot. If it is gone, from the newest on.
        """
        query = select(SnapshotRow).order_by(SnapshotRow.number.desc()).limit(most)
        if run_id is not None:
            query = query.join(PoolRow).join(RunReferenceRow)
            query = query.where(RunReferenceRow.run_id == run_id)
        with read_session(self._engine) as session:
            number = select(SnapshotRow.number).filter_by(snapshot_id=after)
            last = session.scalar(number) if after else None
            if last is not None:
                query = query.where(SnapshotRow.number < last)
            return [decode_snapshot(row.description) for row in session.scalars(query)]

    def require_shards(self, snapshot_id: str, digests: Sequence[Digest]) -> None:
        """Raise NotFound unless the snapshot has all these shards."""
        query = select(ShardRow.sha256, ShardRow.size_bytes).filter_by(snapshot_id=snapshot_id)
        if len(digests) <= _MAX_NAMED:
            query = query.where(ShardRow.sha256.in_([digest.sha256 for digest in digests]))
        with read_session(self._engine) as session:
            _snapshot_row(session, snapshot_id)
            present = {Digest(sha256, size_bytes) for sha256, size_bytes in session.execute(query)}
        for digest in digests:
            if digest not in present:
                raise NotFound(
                    f"snapshot {snapshot_id} has no shard {digest}; GetShare lists those it has"
                )


def previous_snapshot(session: Session, run_number: int) -> str:
    """Return the id of the run's newest snapshot; empty if it has none."""
    query = select(SnapshotRow.snapshot_id).join(PoolRow).where(PoolRow.run_number == run_number)
    return session.scalar(query.order_by(SnapshotRow.number.desc()).limit(1)) or ""


def _seal_input(session: Session, pool_id: str, named: Set[Contribution]) -> SealInput:
    pool = require_pool(session, pool_id)
    spec = decode_pool_spec(pool.spec)
    rows = [row for row in batches_of(session, pool_id) if _contribution(row) in named]
    return SealInput(
        pool_id=pool_id,
        spec=spec,
        # Sorted here: databases differ in how they order text.
        present=tuple(sorted(map(_contribution, rows))),
        new_samples=sum(row.samples for row in rows),
        leaking_batches=pool.leaking_batches,
        parent_snapshot_id=previous_snapshot(session, pool.run_number),
        withdrawn=withdrawn_contributors(session, spec.run_id),
    )


def _missing(named: Set[Contribution], present: Iterable[Contribution]) -> tuple[Contribution, ...]:
    return tuple(sorted(named - set(present)))


def _sealed(session: Session, pool_id: str, named: Set[Contribution]) -> SealedPool | None:
    pool = require_pool(session, pool_id)
    match PoolState[pool.state]:
        case PoolState.OPEN:
            return None
        case PoolState.SEALED:
            pass
        case ended:
            raise WrongState(f"pool {pool_id} is {ended.value}: {pool.state_reason}")
    row = session.scalar(select(SnapshotRow).filter_by(pool_id=pool_id))
    if row is None:
        raise NotFound(f"the snapshot of pool {pool_id} was collected because no run needed it")
    rows = session.scalars(select(NamedBatchRow).filter_by(pool_id=pool_id))
    if set(map(_contribution, rows)) != named:
        raise Conflict(
            f"pool {pool_id} was sealed before with other batches; GetPool names its snapshot"
        )
    # The batches of a sealed pool do not change, so the same ones stay missing.
    present = map(_contribution, batches_of(session, pool_id))
    return SealedPool(_snapshot(session, row), _missing(named, present))


def _snapshot_row(session: Session, snapshot_id: str) -> SnapshotRow:
    row = session.scalar(select(SnapshotRow).filter_by(snapshot_id=snapshot_id))
    if row is None:
        raise NotFound(
            f"there is no snapshot {snapshot_id}, or it was collected; "
            "`hfmds snapshots list` shows the others"
        )
    return row


def _snapshot(
    session: Session, row: SnapshotRow, start: int = 0, most: int | None = None
) -> Snapshot:
    query = select(ShardRow.description).where(
        ShardRow.snapshot_id == row.snapshot_id, ShardRow.position >= start
    )
    shards = session.scalars(query.order_by(ShardRow.position).limit(most))
    return replace(decode_snapshot(row.description), shards=tuple(map(decode_shard, shards)))


def _add_rows(session: Session, built: BuiltSnapshot, named: Iterable[Contribution]) -> None:
    snapshot = built.snapshot
    session.add(
        SnapshotRow(
            snapshot_id=snapshot.snapshot_id,
            pool_id=snapshot.pool_id,
            description=encode_snapshot(snapshot),
        )
    )
    session.flush()  # the shards' foreign key needs it
    session.add_all(_shard_rows(snapshot.snapshot_id, built.shards))
    session.add_all(
        NamedBatchRow(
            pool_id=snapshot.pool_id,
            device_id=item.device_id,
            sha256=item.batch.sha256,
            size_bytes=item.batch.size_bytes,
        )
        for item in named
    )


def _shard_rows(snapshot_id: str, shards: Sequence[KnownShard]) -> list[ShardRow]:
    return [
        ShardRow(
            snapshot_id=snapshot_id,
            position=position,
            sha256=known.shard.digest.sha256,
            size_bytes=known.shard.digest.size_bytes,
            contributor=known.shard.contributor,
            description=encode_shard(known.shard),
            hashes=known.hashes,
            measurements=known.measurements,
        )
        for position, known in enumerate(shards)
    ]


def _contribution(row: BatchRow | NamedBatchRow) -> Contribution:
    return Contribution(row.device_id, row.digest)
