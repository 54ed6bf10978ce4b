"""Builds the store: each object gets the few others that it works with.

`serving.serve` runs what `build` returns. Tests call `build`, too, with a clock of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from hfmds.service.security.revocation_gate import Gate
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import open_database, shown_url
from hfmds.storage.locations import open_location
from hfmds.storage.schema import Schema
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content
from synthesis_store.api.store_service import StoreServicer
from synthesis_store.content.orphans import Orphans
from synthesis_store.contributors.exclusion_list import ExclusionList
from synthesis_store.contributors.store_identity import StoreIdentity
from synthesis_store.delivery.snapshots import Snapshots
from synthesis_store.events import StoreEvents
from synthesis_store.monitoring.inventory import InventoryReader
from synthesis_store.monitoring.inventory_metrics import InventoryMetrics
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.pool_records import PoolRecords
from synthesis_store.pools.pools import Pools
from synthesis_store.pools.refused_batches import REFUSAL_REASONS
from synthesis_store.retention.data_retention import DataRetention
from synthesis_store.retention.housekeeping import Housekeeper
from synthesis_store.retention.snapshot_retention import SnapshotRetention
from synthesis_store.retention.withdrawals import Withdrawals
from synthesis_store.settings import StoreSettings
from synthesis_store.snapshots.missing_content import MissingContent
from synthesis_store.snapshots.sealing import Sealing
from synthesis_store.snapshots.snapshot_builder import SnapshotBuilder
from synthesis_store.snapshots.snapshot_records import SnapshotRecords

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class StoreApp:
    """The store without its ports."""

    content: Content
    identity: StoreIdentity
    events: StoreEvents
    orphans: Orphans
    pool_records: PoolRecords
    pools: Pools
    snapshot_records: SnapshotRecords
    snapshot_retention: SnapshotRetention
    builder: SnapshotBuilder
    sealing: Sealing
    snapshots: Snapshots
    retention: DataRetention
    exclusions: ExclusionList
    inventory: InventoryMetrics
    housekeeper: Housekeeper
    servicer: StoreServicer


def open_tables(settings: StoreSettings) -> Engine:
    """Open the store's database, with the tables that this version works with."""
    engine = open_database(settings.resolved_database_url, "synthesis_store")
    log.info("database opened", extra={"database": shown_url(engine)})
    Schema("synthesis_store").prepare(engine)
    return engine


def open_blobs(settings: StoreSettings) -> Blobs:
    """Open the place of the content."""
    return open_location(
        settings.resolved_blobs_url, settings.data_dir / "cache", settings.blobs_cache_max_bytes
    ).place()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def build(
    settings: StoreSettings,
    engine: Engine,
    blobs: Blobs,
    registry: CollectorRegistry,
    gate: Gate,
    now: Clock = _utc_now,
) -> StoreApp:
    """Build the store on its database and its content, and finish what a crash interrupted."""
    content = Content(blobs, Staging(settings.data_dir / "uploads", settings.max_blob_bytes))
    metrics = StoreMetrics(registry, REFUSAL_REASONS)
    identity = StoreIdentity(engine, blobs)
    events = StoreEvents(engine, identity.log_id, now)
    grace = timedelta(seconds=settings.orphan_grace_seconds)
    orphans = Orphans(engine, blobs, events, grace, now)
    exclusions = ExclusionList(engine, gate)

    pool_records = PoolRecords(engine, orphans, events, identity, now)
    pools = Pools(pool_records, content, orphans, metrics, settings.upload_ttl_seconds)

    snapshot_records = SnapshotRecords(engine, orphans, events)
    builder = SnapshotBuilder(snapshot_records, orphans, blobs, identity, now)
    missing = MissingContent(pool_records, snapshot_records, blobs, now)
    sealing = Sealing(pool_records, snapshot_records, builder, missing, metrics)
    snapshots = Snapshots(snapshot_records, blobs, sealing)

    snapshot_retention = SnapshotRetention(
        engine, orphans, events, pool_records, settings.keep_snapshots
    )
    withdrawals = Withdrawals(engine, orphans, events, identity, now)
    retention = DataRetention(snapshot_retention, withdrawals, orphans, pools, now)
    retention.recover()

    reader = InventoryReader(engine, identity.log_id, now)
    inventory = InventoryMetrics(reader.read, registry)
    housekeeper = Housekeeper(sealing, pools, retention, settings)
    servicer = StoreServicer(pools, snapshots, retention, events, exclusions)
    return StoreApp(
        content=content,
        identity=identity,
        events=events,
        orphans=orphans,
        pool_records=pool_records,
        pools=pools,
        snapshot_records=snapshot_records,
        snapshot_retention=snapshot_retention,
        builder=builder,
        sealing=sealing,
        snapshots=snapshots,
        retention=retention,
        exclusions=exclusions,
        inventory=inventory,
        housekeeper=housekeeper,
        servicer=servicer,
    )
