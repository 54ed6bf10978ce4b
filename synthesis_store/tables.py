"""The store's database tables.

Specifications and descriptions are kept as the bytes of their contract messages
(`hfmds.wire.conversions.records`). Nothing has a row per sample.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, ForeignKey, String, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from hfmds.domain.digest import Digest
from hfmds.storage.event_log import EventColumns

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
    log_id: Mapped[str] = mapped_column(_ID)  # of its event log


class StoreEventRow(EventColumns, Base):
    """An event of the store's log. Only ever added."""

    __tablename__ = "store_events"


class RunReferenceRow(Base):
    """A run as long as it needs its snapshots. One that gets the same id later has another row."""

    __tablename__ = "run_references"

    number: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(_ID, index=True)
    released: Mapped[bool] = mapped_column(default=False)
    # Snapshots that it needs however old they are, as its last OpenPool named them.
    referenced: Mapped[list[str]] = mapped_column(JSON)


class PoolRow(Base):
    """A pool: what it takes, where it is in its life, and totals over its batches."""

    __tablename__ = "pools"

    pool_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    run_number: Mapped[int] = mapped_column(ForeignKey(RunReferenceRow.number), index=True)
    spec: Mapped[bytes]
    opened_at: Mapped[datetime] = mapped_column(_UtcDateTime)
    state: Mapped[str] = mapped_column(String(16), index=True)  # PoolState by name
    state_reason: Mapped[str] = mapped_column(default="")
    seal_quorum: Mapped[int] = mapped_column(default=0)  # 0: never by number
    seals_at: Mapped[datetime | None] = mapped_column(_UtcDateTime)
    devices: Mapped[int] = mapped_column(default=0)
    samples: Mapped[int] = mapped_column(BigInteger, default=0)
    leaking_samples: Mapped[int] = mapped_column(BigInteger, default=0)
    leaking_batches: Mapped[int] = mapped_column(BigInteger, default=0)
    leakage: Mapped[bytes]


class BatchRow(Base):
    """A device's batch in a pool; the row outlives the blob, so that a late retry is recognised."""

    __tablename__ = "batches"

    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), primary_key=True)
    device_id: Mapped[str] = mapped_column(_ID, primary_key=True, index=True)
    sha256: Mapped[str] = mapped_column(_SHA256, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    samples: Mapped[int]
    leaking_samples: Mapped[int]
    leakage: Mapped[bytes]  # what the pool's totals have of it
    accepted_at: Mapped[datetime] = mapped_column(_UtcDateTime)

    @property
    def digest(self) -> Digest:
        return Digest(self.sha256, self.size_bytes)


class NamedBatchRow(Base):
    """A batch that was named when a pool was sealed, whether it was in the pool or not."""

    __tablename__ = "named_batches"

    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), primary_key=True)
    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger, primary_key=True)

    @property
    def digest(self) -> Digest:
        return Digest(self.sha256, self.size_bytes)


class SnapshotRow(Base):
    """What sealing a pool gave."""

    __tablename__ = "snapshots"

    number: Mapped[int] = mapped_column(primary_key=True)  # in the order of sealing
    snapshot_id: Mapped[str] = mapped_column(_ID, unique=True)
    pool_id: Mapped[str] = mapped_column(ForeignKey(PoolRow.pool_id), unique=True)
    description: Mapped[bytes]  # the snapshot without its shards


class ShardRow(Base):
    """A part of a snapshot. What is taken over from a snapshot has a row in each."""

    __tablename__ = "shards"

    snapshot_id: Mapped[str] = mapped_column(ForeignKey(SnapshotRow.snapshot_id), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(_SHA256, index=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    contributor: Mapped[str] = mapped_column(_ID, index=True)
    description: Mapped[bytes]
    # Of each sample, one behind the other; only needed when the next snapshot is made.
    hashes: Mapped[bytes] = mapped_column(deferred=True)
    measurements: Mapped[bytes] = mapped_column(deferred=True)

    @property
    def digest(self) -> Digest:
        return Digest(self.sha256, self.size_bytes)


class LooseBlobRow(Base):
    """A note of content that may be on disk while nothing needs it: to be claimed or deleted."""

    __tablename__ = "loose_blobs"

    sha256: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    # Of who may be about to write it, each has one; empty: nobody, it was given up.
    mark: Mapped[str] = mapped_column(String(32), primary_key=True, default="", server_default="")
    # Why it was given up, if the log is to say that it was erased; else empty.
    reason: Mapped[str] = mapped_column(String(32), default="")
    # The replica that may be about to write it, since when; empty: none.
    writer: Mapped[str] = mapped_column(_ID, default="")
    noted_at: Mapped[datetime | None] = mapped_column(_UtcDateTime)
    # Whether the content may have been deleted since: then the mark says nothing of it.
    void: Mapped[bool] = mapped_column(default=False, server_default=false())

    @property
    def digest(self) -> Digest:
        return Digest(self.sha256, self.size_bytes)


class WithdrawalRow(Base):
    """A device whose consent was taken back."""

    __tablename__ = "withdrawals"

    device_id: Mapped[str] = mapped_column(_ID, primary_key=True)
    run_id: Mapped[str] = mapped_column(_ID, primary_key=True)  # empty: from all runs
    contributor: Mapped[str] = mapped_column(_ID)
    withdrawn_at: Mapped[datetime] = mapped_column(_UtcDateTime)
    erased_at: Mapped[datetime | None] = mapped_column(_UtcDateTime)  # None: not all of it yet


class ExclusionsRow(Base):
    """Who is shut out of the fleet; one row, once the coordinator has said it."""

    __tablename__ = "exclusions"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[str] = mapped_column(_SHA256)  # as the coordinator names it
    record: Mapped[bytes]
