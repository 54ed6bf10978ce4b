"""Pools, batches and stores that the tests of the synthesis store share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry
from sqlalchemy import func, select

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import MEASUREMENTS, LabelledImages, SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Contribution, PoolSpec, Snapshot
from hfmds.domain.recipe import ModelSpec
from hfmds.event_chain import Event, flaw
from hfmds.service.security.revocation_gate import Gate
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.database import open_database, read_session
from hfmds.storage.schema import Schema
from hfmds.wire.tensors import encode_batch
from synthesis_store.api.store_service import StoreServicer
from synthesis_store.content.stored_batches import read_stored_batch
from synthesis_store.delivery.snapshots import Snapshots
from synthesis_store.pools.pool_records import BatchKey
from synthesis_store.settings import StoreSettings
from synthesis_store.tables import OrphanRow
from synthesis_store.wiring import build
from tests.support.databases import database_of

T = TypeVar("T")

MODEL = ModelSpec(channels=1, height=4, width=3, classes=5)
SPEC = PoolSpec(
    run_id="run-1",
    round_number=4,
    weights=digest_of(b"w^4"),
    model=MODEL,
    max_samples_per_device=8,
    method="hfmds",
)
ACCUMULATE = replace(SPEC, policy=PoolPolicy(refresh="accumulate"))
LARGE = replace(ACCUMULATE, max_samples_per_device=300)
MIXTURES = replace(SPEC, method="fedmix", with_shares=True)
GRACE_SECONDS = 24 * 3600.0
START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def make_batch(seed: int, samples: int = 3, model: ModelSpec = MODEL) -> SyntheticBatch:
    random = np.random.default_rng(seed)
    return SyntheticBatch(
        LabelledImages(
            random.integers(0, 256, (samples, *model.image_shape), np.uint8),
            random.integers(0, model.classes, samples, np.int64),
        ),
        random.uniform(8, 12, samples).astype(np.float32),
        random.uniform(12, 16, samples).astype(np.float32),
        random.uniform(-0.5, 0, samples).astype(np.float32),
        random.uniform(0, 0.5, samples).astype(np.float32),
    )


def make_mixtures(seed: int, samples: int = 3, model: ModelSpec = MODEL) -> SyntheticBatch:
    """A batch of images that are mixtures of classes."""
    batch = make_batch(seed, samples, model)
    shares = np.random.default_rng(seed).dirichlet(np.ones(model.classes), samples)
    shares = shares.astype(np.float32)
    images = LabelledImages(batch.images.pixels, shares.argmax(axis=1), shares)
    return replace(batch, images=images)


def joined(*batches: SyntheticBatch) -> SyntheticBatch:
    shares = [batch.images.shares for batch in batches if batch.images.shares is not None]
    return SyntheticBatch(
        LabelledImages(
            np.concatenate([batch.images.pixels for batch in batches]),
            np.concatenate([batch.images.labels for batch in batches]),
            np.concatenate(shares) if shares else None,
        ),
        **{
            name: np.concatenate([batch.measurements[name] for batch in batches])
            for name in MEASUREMENTS
        },
    )


def named(**batches: Digest) -> list[Contribution]:
    """Batches by the devices they are of."""
    return [Contribution(device_id, digest) for device_id, digest in batches.items()]


def same(left: SyntheticBatch, right: SyntheticBatch) -> bool:
    return encode_batch(left) == encode_batch(right)


class Clock:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.moment = START

    def __call__(self) -> datetime:
        return self.moment

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop, also within an asynchronous test.

    The state machine of Hypothesis has synchronous rules only.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Store:
    """A store without its ports, built over a folder as its program builds it."""

    def __init__(
        self,
        folder: Path,
        max_blob_bytes: int = 1 << 20,
        keep_snapshots: int = 2,
        blobs: FolderBlobs | None = None,
    ) -> None:
        self.clock = Clock()
        self.registry = CollectorRegistry()
        self.uploads_folder = folder / "uploads"
        self.blobs = blobs or FolderBlobs(folder / "blobs")
        self.engine = open_database(database_of(folder))
        Schema("synthesis_store").upgrade(self.engine)
        settings = StoreSettings(
            data_dir=folder,
            max_blob_bytes=max_blob_bytes,
            upload_ttl_seconds=3600,
            keep_snapshots=keep_snapshots,
            orphan_grace_seconds=GRACE_SECONDS,
        )
        self.app = build(settings, self.engine, self.blobs, self.registry, Gate(), self.clock)
        self.pools = self.app.pools

    def put(self, device_id: str, data: bytes | SyntheticBatch, pool_id: str = "pool-1") -> Digest:
        """Put a batch from offset 0; returns its digest."""
        content = data if isinstance(data, bytes) else encode_batch(data)
        digest = digest_of(content)
        self.put_chunks(BatchKey(pool_id, device_id, digest), 0, chunks_of(content))
        return digest

    def put_chunks(self, key: BatchKey, offset: int, chunks: AsyncIterator[bytes]) -> bool:
        """Put chunks of a batch."""
        return run(self.pools.put(key, offset, chunks))

    def read(self, digest: Digest) -> SyntheticBatch:
        """Read a stored batch or shard."""
        return read_stored_batch(self.blobs, digest)

    def seal(self, pool_id: str = "pool-1", /, **batches: Digest) -> Snapshot:
        """Seal these devices' batches, all of which are in the pool."""
        sealed = self.app.sealing.seal(pool_id, named(**batches))
        assert sealed.missing == ()
        return sealed.snapshot

    def held_bytes(self) -> int:
        """Return the size of all content and of all open uploads."""
        return sum(blob.size_bytes for blob in self.blobs.digests()) + sum(
            path.stat().st_size for path in self.uploads_folder.iterdir()
        )

    def orphans(self) -> int:
        """Return how many orphans wait to be deleted."""
        waiting = select(func.count()).select_from(OrphanRow).filter_by(deleted_at=None)
        with read_session(self.engine) as session:
            return session.scalar(waiting) or 0

    def metric(self, name: str, **labels: str) -> float | None:
        self.app.inventory.refresh()
        return self.registry.get_sample_value(f"hfmds_store_{name}", labels)


def refresh(
    store: Store, number: int, spec: PoolSpec = SPEC, /, **batches: SyntheticBatch
) -> Snapshot:
    """Make the snapshot of a refresh of a run in which these devices take part."""
    pool_id = f"{spec.run_id}.{number}"
    store.pools.open(pool_id, replace(spec, round_number=number))
    digests = {device: store.put(device, batch, pool_id) for device, batch in batches.items()}
    return store.seal(pool_id, **digests)


def content_of(store: Store, snapshot: Snapshot) -> SyntheticBatch:
    """Read all samples of a snapshot from storage."""
    return joined(*(store.read(shard.digest) for shard in snapshot.shards))


def read_shards(store: Store, snapshot: Snapshot) -> list[bytes]:
    """Read the shards of a snapshot as devices read them."""
    return [read_shard(store, snapshot.snapshot_id, shard.digest) for shard in snapshot.shards]


def read_shard(store: Store, snapshot_id: str, digest: Digest, offset: int = 0) -> bytes:
    """Read a shard as a device reads it."""

    async def read() -> bytes:
        chunks = store.app.snapshots.stream(snapshot_id, [digest], offset)
        return b"".join([piece async for pieces in chunks for piece in pieces])

    return run(read())


def events_of(store: Store) -> list[Event]:
    """Return the event log, which must be sound."""
    events = store.app.events.list(0, 1000)
    assert flaw(events, store.app.events.log_id) == ""
    return events


def details_of(store: Store, kind: str) -> list[dict[str, object]]:
    """Return the details of all events of a kind."""
    return [json.loads(event.details) for event in events_of(store) if event.kind == kind]


def new_servicer(store: Store) -> StoreServicer:
    """Make another servicer of the store, for one event loop."""
    app = store.app
    snapshots = Snapshots(app.snapshot_records, store.blobs, app.sealing)
    return StoreServicer(store.pools, snapshots, app.retention, app.events, app.exclusions)


async def chunks_of(data: bytes, size: int = 100) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def hung_up(data: bytes) -> AsyncIterator[bytes]:
    yield data
    raise ConnectionError("the device hung up")
