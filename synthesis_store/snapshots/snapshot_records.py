"""Snapshots and what they were made of, as the database has them.

Every change is one transaction. Content is written before the row that needs it (`contents`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, undefer

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Contribution, PoolSpec, PoolState, Shard, Snapshot
from hfmds.errors import Conflict, NotFound, Unavailable, WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import reading, transaction
from hfmds.wire.conversions.records import (
    decode_pool_spec,
    decode_shard,
    decode_snapshot,
    encode_shard,
    encode_snapshot,
)
from synthesis_store.events import StoreEventKind, StoreEvents
from synthesis_store.pools.pool_records import batches_of, require_pool
from synthesis_store.retention.blob_references import Contents, loosen
from synthesis_store.retention.withdrawals import withdrawn_contributors
from synthesis_store.snapshots.merging import Percentiles
from synthesis_store.states import POOL_TRANSITIONS
from synthesis_store.tables import (
    BatchRow,
    NamedBatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
)

_ASKED_BY_NAME = 100  # of more shards, the database is asked for all that the snapshot has


@dataclass(frozen=True, slots=True)
class Sealed:
    """What sealing a pool gave: a snapshot, and what was named but not in the pool."""

    snapshot: Snapshot
    missing: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class KnownShard:
    """A shard with what is remembered of each of its samples."""

    shard: Shard
    hashes: bytes
    measurements: bytes


@dataclass(frozen=True, slots=True)
class Basis:
    """What a snapshot is made of, as it was when making it began."""

    pool_id: str
    spec: PoolSpec
    present: tuple[Contribution, ...]  # of those named, by device id
    new_samples: int  # in these
    leaking_batches: int = field(compare=False)  # peers can make it grow at any time
    parent_snapshot_id: str  # the run's snapshot before; empty: none
    withdrawn: frozenset[str]  # contributors whose samples may not be taken over


@dataclass(frozen=True, slots=True)
class Made:
    """A snapshot whose shards are stored, but which nobody knows yet."""

    snapshot: Snapshot
    shards: tuple[KnownShard, ...]
    marks: Mapping[Digest, str]  # of those that were written for it
    percentiles: Sequence[Percentiles]  # of its new samples, and of all


class SnapshotRecords:
    """What the store remembers of sealed pools."""

    def __init__(self, engine: Engine, contents: Contents, events: StoreEvents) -> None:
        self._engine = engine
        self._contents = contents
        self._events = events

    # --- sealing --------------------------------------------------------------------------------

    def batches(self, pool_id: str) -> list[Contribution]:
        """All that is in a pool, by device id."""
        with reading(self._engine) as session:
            return sorted(map(_contribution, batches_of(session, pool_id)))

    def sealed(self, pool_id: str, named: Set[Contribution]) -> Sealed | None:
        """What sealing gave; None while the pool is open; Conflict if others were named."""
        with reading(self._engine) as session:
            return _sealed(session, pool_id, named)

    def basis(self, pool_id: str, named: Set[Contribution]) -> Basis:
        """What a snapshot of the named batches would be made of now."""
        with reading(self._engine) as session:
            return _basis(session, pool_id, named)

    def known_shards(self, snapshot_id: str) -> list[KnownShard]:
        """A snapshot's shards with what is remembered of their samples."""
        query = (
            select(ShardRow)
            .filter_by(snapshot_id=snapshot_id)
            .order_by(ShardRow.position)
            .options(undefer(ShardRow.hashes), undefer(ShardRow.measurements))
        )
        with reading(self._engine) as session:
            return [
                KnownShard(decode_shard(row.description), row.hashes, row.measurements)
                for row in session.scalars(query)
            ]

    def record(self, made: Made, named: Set[Contribution], basis: Basis) -> Sealed:
        """Seal the pool into this snapshot; one that was sealed before stays.

        Batches whose content is not a shard are then known by name only. Unavailable if what it
        was made of has changed meanwhile.
        """
        snapshot, pool_id = made.snapshot, made.snapshot.pool_id
        needed = {known.shard.digest for known in made.shards}
        left_out: list[Digest] = []
        with transaction(self._engine) as session:
            existing = _sealed(session, pool_id, named)
            if existing is not None:
                return existing
            if _basis(session, pool_id, named) != basis:
                raise Unavailable(f"pool {pool_id} changed while it was sealed; try again")
            # What the pool or the snapshot before has cannot have been deleted: that is not asked,
            # since asking S3 of thousands of shards would keep all other writers waiting.
            for digest in needed - _held(session, basis):
                self._contents.claim(session.connection(), digest, made.marks.get(digest, ""))
            _add_rows(session, made, named)
            pool = require_pool(session, pool_id)
            what = f"pool {pool_id}"
            require_transition(POOL_TRANSITIONS, PoolState[pool.state], PoolState.SEALED, what)
            pool.state = PoolState.SEALED.name
            for row in batches_of(session, pool_id):
                if row.digest not in needed:
                    left_out.append(row.digest)
                    loosen(session.connection(), row.digest)
            self._events.append(
                session,
                StoreEventKind.POOL_SEALED,
                pool=pool_id,
                snapshot=snapshot.snapshot_id,
                devices=len(basis.present),
                samples=snapshot.samples,
                carried=snapshot.carried_samples,
                duplicates=snapshot.duplicates,
            )
        self._contents.sweep(left_out)
        return Sealed(snapshot, _missing(named, basis.present))

    # --- serving --------------------------------------------------------------------------------

    def snapshot(self, snapshot_id: str, start: int = 0, most: int | None = None) -> Snapshot:
        """The snapshot with its shards, or so many of them from a position on; or NotFound."""
        with reading(self._engine) as session:
            return _snapshot(session, _snapshot_row(session, snapshot_id), start, most)

    def snapshots(
        self, run_id: str | None = None, after: str = "", most: int | None = None
    ) -> list[Snapshot]:
        """Snapshots of one run, or of all, newest first and without shards.

        Or so many of them behind a certain one; if that is gone, from the newest on.
        """
        query = select(SnapshotRow).order_by(SnapshotRow.number.desc()).limit(most)
        if run_id is not None:
            query = query.join(PoolRow).join(RunReferenceRow)
            query = query.where(RunReferenceRow.run_id == run_id)
        with reading(self._engine) as session:
            of_last = select(SnapshotRow.number).filter_by(snapshot_id=after)
            last = session.scalar(of_last) if after else None
            if last is not None:
                query = query.where(SnapshotRow.number < last)
            return [decode_snapshot(row.description) for row in session.scalars(query)]

    def require_shards(self, snapshot_id: str, digests: Sequence[Digest]) -> None:
        """NotFound unless the snapshot has these shards."""
        query = select(ShardRow.sha256, ShardRow.size_bytes).filter_by(snapshot_id=snapshot_id)
        if len(digests) <= _ASKED_BY_NAME:
            query = query.where(ShardRow.sha256.in_([digest.sha256 for digest in digests]))
        with reading(self._engine) as session:
            _snapshot_row(session, snapshot_id)
            there = {Digest(sha256, size_bytes) for sha256, size_bytes in session.execute(query)}
        for digest in digests:
            if digest not in there:
                raise NotFound(
                    f"snapshot {snapshot_id} has no shard {digest}; GetShare lists those it has"
                )


def previous_snapshot(session: Session, run_number: int) -> str:
    """The id of the run's newest snapshot; empty: it has none."""
    query = select(SnapshotRow.snapshot_id).join(PoolRow).where(PoolRow.run_number == run_number)
    return session.scalar(query.order_by(SnapshotRow.number.desc()).limit(1)) or ""


def _basis(session: Session, pool_id: str, named: Set[Contribution]) -> Basis:
    pool = require_pool(session, pool_id)
    spec = decode_pool_spec(pool.spec)
    rows = [row for row in batches_of(session, pool_id) if _contribution(row) in named]
    return Basis(
        pool_id=pool_id,
        spec=spec,
        present=tuple(sorted(map(_contribution, rows))),
        new_samples=sum(row.samples for row in rows),
        leaking_batches=pool.leaking_batches,
        parent_snapshot_id=previous_snapshot(session, pool.run_number),
        withdrawn=withdrawn_contributors(session, spec.run_id),
    )


def _held(session: Session, basis: Basis) -> set[Digest]:
    """Content that is needed already."""
    before = select(ShardRow.sha256, ShardRow.size_bytes)
    before = before.where(ShardRow.snapshot_id == basis.parent_snapshot_id)
    return {
        *(item.batch for item in basis.present),
        *(Digest(row.sha256, row.size_bytes) for row in session.execute(before)),
    }


def _present(session: Session, pool_id: str, named: Set[Contribution]) -> list[Contribution]:
    # Sorted here: databases differ in how they order text.
    return sorted(named & set(map(_contribution, batches_of(session, pool_id))))


def _missing(named: Set[Contribution], present: Iterable[Contribution]) -> tuple[Contribution, ...]:
    return tuple(sorted(named - set(present)))


def _sealed(session: Session, pool_id: str, named: Set[Contribution]) -> Sealed | None:
    pool = require_pool(session, pool_id)
    match PoolState[pool.state]:
        case PoolState.OPEN:
            return None
        case PoolState.SEALED:
            pass
        case over:
            raise WrongState(f"pool {pool_id} is {over.value}: {pool.state_reason}")
    row = session.scalar(select(SnapshotRow).filter_by(pool_id=pool_id))
    if row is None:
        raise NotFound(f"the snapshot of pool {pool_id} was collected, as nobody needed it")
    rows = session.scalars(select(NamedBatchRow).filter_by(pool_id=pool_id))
    if set(map(_contribution, rows)) != named:
        raise Conflict(
            f"pool {pool_id} was sealed before with other batches; GetPool names its snapshot"
        )
    # The batches of a sealed pool stay as they were, so the same ones are missing ever after.
    missing = _missing(named, _present(session, pool_id, named))
    return Sealed(_snapshot(session, row), missing)


def _snapshot_row(session: Session, snapshot_id: str) -> SnapshotRow:
    row = session.scalar(select(SnapshotRow).filter_by(snapshot_id=snapshot_id))
    if row is None:
        raise NotFound(
            f"there is no snapshot {snapshot_id}, or it was collected; `hfmds snapshots list` "
            f"shows those there are"
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


def _add_rows(session: Session, made: Made, named: Iterable[Contribution]) -> None:
    snapshot = made.snapshot
    session.add(
        SnapshotRow(
            snapshot_id=snapshot.snapshot_id,
            pool_id=snapshot.pool_id,
            description=encode_snapshot(snapshot),
        )
    )
    session.flush()  # the shards' foreign key needs it
    session.add_all(_shard_rows(snapshot.snapshot_id, made.shards))
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
