"""The store's database tables, and how their rows become the values of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from hfmds.algorithm.types import LeakageSummary
from hfmds.digest import Digest
from hfmds.wire.records import decode_pool_spec, encode_pool_spec
from hfmds.wire.types import PoolSpec, Shard, Snapshot

_ID = String(128)
_SHA256 = String(64)


class _UtcDateTime(TypeDecorator[datetime]):
    """A moment, kept as UTC: SQLite would forget the time zone."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.replace(tzinfo=UTC)


class Base(DeclarativeBase):
    """All tables of the store."""


class StoreRow(Base):
    """The one row about the store itself."""

    __tablename__ = "store"

    id: Mapped[int] = mapped_column(primary_key=True)
    pseudonym_key: Mapped[bytes]  # a secret: who has it can find out which device contributed


class PoolRow(Base):
    """A pool as it was opened."""

    __tablename__ = "pools"

    pool_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    run_id: Mapped[str] = mapped_column(_ID, index=True)
    spec: Mapped[bytes]
    opened_at: Mapped[datetime] = mapped_column(_UtcDateTime)
    sealed: Mapped[bool] = mapped_column(default=False)


class BatchRow(Base):
    """A device's batch in a pool; the row outlives the blob, so that a late retry is recognised."""

    __tablename__ = "batches"

    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), primary_key=True)
    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    samples: Mapped[int]
    accepted_at: Mapped[datetime] = mapped_column(_UtcDateTime)


class NamedBatchRow(Base):
    """A batch that was named when a pool was sealed, whether it was in the pool or not."""

    __tablename__ = "named_batches"

    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), primary_key=True)
    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger, primary_key=True)


class SnapshotRow(Base):
    """What sealing a pool gave."""

    __tablename__ = "snapshots"

    number: Mapped[int] = mapped_column(primary_key=True)  # in the order of sealing
    snapshot_id: Mapped[str] = mapped_column(_ID, unique=True)
    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), unique=True)
    samples: Mapped[int] = mapped_column(BigInteger)
    class_histogram: Mapped[list[int]] = mapped_column(JSON)
    duplicates: Mapped[int] = mapped_column(BigInteger)
    paired_mean: Mapped[float]
    paired_p99: Mapped[float]
    paired_max: Mapped[float]
    nearest_mean: Mapped[float]
    nearest_p99: Mapped[float]
    nearest_max: Mapped[float]
    sealed_at: Mapped[datetime] = mapped_column(_UtcDateTime)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class ShardRow(Base):
    """A part of a snapshot."""

    __tablename__ = "shards"

    snapshot_id: Mapped[str] = mapped_column(ForeignKey(SnapshotRow.snapshot_id), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    samples: Mapped[int] = mapped_column(BigInteger)
    contributor: Mapped[str] = mapped_column(_ID)


class LooseBlobRow(Base):
    """Content that may be on disk while no pool or snapshot needs it: to be claimed or deleted."""

    __tablename__ = "loose_blobs"

    sha256: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger, primary_key=True)


def pool_row(pool_id: str, spec: PoolSpec, opened_at: datetime) -> PoolRow:
    """The row of a pool that is being opened."""
    return PoolRow(
        pool_id=pool_id,
        run_id=spec.run_id,
        spec=encode_pool_spec(spec),
        opened_at=opened_at,
        sealed=False,
    )


def snapshot_rows(snapshot: Snapshot) -> tuple[SnapshotRow, list[ShardRow]]:
    """The rows of a snapshot that is being made."""
    leakage = {
        field.name: getattr(snapshot.leakage, field.name) for field in fields(LeakageSummary)
    }
    row = SnapshotRow(
        snapshot_id=snapshot.snapshot_id,
        pool_id=snapshot.pool_id,
        samples=snapshot.samples,
        class_histogram=list(snapshot.class_histogram),
        duplicates=snapshot.duplicates,
        **leakage,
        sealed_at=snapshot.sealed_at,
        size_bytes=snapshot.size_bytes,
    )
    shards = [
        ShardRow(
            snapshot_id=snapshot.snapshot_id,
            position=position,
            sha256=shard.digest.sha256,
            size_bytes=shard.digest.size_bytes,
            samples=shard.samples,
            contributor=shard.contributor,
        )
        for position, shard in enumerate(snapshot.shards)
    ]
    return row, shards


def snapshot_of(row: SnapshotRow, pool: PoolRow, shards: Sequence[ShardRow] = ()) -> Snapshot:
    """The snapshot, with the given shards."""
    return Snapshot(
        snapshot_id=row.snapshot_id,
        pool_id=row.pool_id,
        spec=decode_pool_spec(pool.spec),
        samples=row.samples,
        class_histogram=tuple(row.class_histogram),
        duplicates=row.duplicates,
        leakage=LeakageSummary(
            **{field.name: getattr(row, field.name) for field in fields(LeakageSummary)}
        ),
        sealed_at=row.sealed_at,
        size_bytes=row.size_bytes,
        shards=tuple(
            Shard(Digest(shard.sha256, shard.size_bytes), shard.samples, shard.contributor)
            for shard in shards
        ),
    )
