"""The tables of the store's database.

Specifications and descriptions are stored as the bytes of their protobuf messages
(`hfmds.wire.conversions.records`). No table has a row per sample.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from hfmds.domain.digest import Digest
from hfmds.storage.event_log import EventColumns

_ID = String(128)
_SHA256 = String(64)


class _UtcDateTime(TypeDecorator[datetime]):
    """A time, stored as UTC because SQLite drops the time zone."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.replace(tzinfo=UTC)


class StoreBase(DeclarativeBase):
    """The base of all tables of the store."""


class ContentColumns:
    """The two columns that name a blob."""

    sha256: Mapped[str]
    size_bytes: Mapped[int]

    @property
    def digest(self) -> Digest:
        """The name of the blob."""
        return Digest(self.sha256, self.size_bytes)


class StoreRow(StoreBase):
    """The only row about the store itself."""

    __tablename__ = "store"

    id: Mapped[int] = mapped_column(primary_key=True)
    pseudonym_key: Mapped[bytes]  # a secret: with it, anybody can trace contributors to devices
    log_id: Mapped[str] = mapped_column(_ID)  # of the event log
    # Whether there was no content before this database: then all content is of this store.
    owns_content: Mapped[bool]


class StoreEventRow(EventColumns, StoreBase):
    """An event of the store's log. Rows are only added."""

    __tablename__ = "store_events"


class RunReferenceRow(StoreBase):
    """A run that uses this store. A later run with the same id has a row of its own."""

    __tablename__ = "run_references"

    number: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(_ID, index=True)
    released: Mapped[bool]
    # Snapshots that the run's last OpenPool named: the store keeps them, however old they are.
    referenced: Mapped[list[str]] = mapped_column(JSON)


class PoolRow(StoreBase):
    """A pool: its specification, its state, and totals over its batches."""

    __tablename__ = "pools"

    pool_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    run_number: Mapped[int] = mapped_column(ForeignKey(RunReferenceRow.number), index=True)
    spec: Mapped[bytes]
    opened_at: Mapped[datetime] = mapped_column(_UtcDateTime)
    state: Mapped[str] = mapped_column(String(16), index=True)  # PoolState by name
    state_reason: Mapped[str] = mapped_column(default="")
    seal_quorum: Mapped[int] = mapped_column(default=0)  # 0: no quorum
    seals_at: Mapped[datetime | None] = mapped_column(_UtcDateTime)
    devices: Mapped[int] = mapped_column(default=0)
    samples: Mapped[int] = mapped_column(BigInteger, default=0)
    leaking_samples: Mapped[int] = mapped_column(BigInteger, default=0)
    leaking_batches: Mapped[int] = mapped_column(BigInteger, default=0)
    leakage: Mapped[bytes]


class BatchRow(ContentColumns, StoreBase):
    """A device's batch in a pool. The row outlives the blob, so the store knows a late retry."""

    __tablename__ = "batches"

    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), primary_key=True)
    device_id: Mapped[str] = mapped_column(_ID, primary_key=True, index=True)
    sha256: Mapped[str] = mapped_column(_SHA256, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    samples: Mapped[int]
    leaking_samples: Mapped[int]
    leakage: Mapped[bytes]  # the part of the pool's totals that comes from this batch
    accepted_at: Mapped[datetime] = mapped_column(_UtcDateTime)


class NamedBatchRow(ContentColumns, StoreBase):
    """A batch that SealPool named, whether the pool had it or not."""

    __tablename__ = "named_batches"

    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), primary_key=True)
    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger, primary_key=True)


class SnapshotRow(StoreBase):
    """A sealed pool."""

    __tablename__ = "snapshots"

    number: Mapped[int] = mapped_column(primary_key=True)  # in the order of sealing
    snapshot_id: Mapped[str] = mapped_column(_ID, unique=True)
    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), unique=True)
    description: Mapped[bytes]  # the snapshot without its shards


class ShardRow(ContentColumns, StoreBase):
    """A part of a snapshot. A carried-over shard has a row in each of its snapshots."""

    __tablename__ = "shards"

    snapshot_id: Mapped[str] = mapped_column(ForeignKey(SnapshotRow.snapshot_id), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    contributor: Mapped[str] = mapped_column(_ID, index=True)
    description: Mapped[bytes]
    # Of all samples, concatenated. Only the builder of the next snapshot reads them.
    hashes: Mapped[bytes] = mapped_column(deferred=True)
    measurements: Mapped[bytes] = mapped_column(deferred=True)


class OrphanRow(ContentColumns, StoreBase):
    """Content that no row needed when this row was written (`content/orphans.py`)."""

    __tablename__ = "orphans"

    sha256: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # Why nothing needs the content, if the event log is to tell of its deletion; else empty.
    reason: Mapped[str] = mapped_column(String(32), default="")
    due_at: Mapped[datetime] = mapped_column(_UtcDateTime)  # the earliest time of the deletion
    deleted_at: Mapped[datetime | None] = mapped_column(_UtcDateTime)  # None: not deleted yet


class WithdrawalRow(StoreBase):
    """A device whose consent was taken back."""

    __tablename__ = "withdrawals"

    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    run_id: Mapped[str] = mapped_column(_ID, primary_key=True)  # empty: from all runs
    contributor: Mapped[str] = mapped_column(_ID)
    withdrawn_at: Mapped[datetime] = mapped_column(_UtcDateTime)
    erased_at: Mapped[datetime | None] = mapped_column(_UtcDateTime)  # None: not all of it yet


class ExclusionsRow(StoreBase):
    """The coordinator's list of excluded devices and certificates. There is one row at most."""

    __tablename__ = "exclusions"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[str] = mapped_column(_SHA256)  # the coordinator's name of the list
    record: Mapped[bytes]
