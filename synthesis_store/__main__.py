"""The synthesis store as a process: wires its parts, serves until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import aclosing, closing
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from hfmds.service.monitoring.metrics_server import MetricsServer
from hfmds.service.monitoring.program_metrics import show_program, show_readiness
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.process import published_addresses, run
from hfmds.service.process.shutdown import Shutdown
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.server.server import GrpcServer
from hfmds.storage.blobs import Blobs
from hfmds.storage.database import database_look, open_database, shown_url
from hfmds.storage.files import FolderLock
from hfmds.storage.health import watching
from hfmds.storage.locations import open_location
from hfmds.storage.schema import Schema
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content
from synthesis_store.access.exclusions import ExclusionRecords
from synthesis_store.access.pseudonyms import replica_name
from synthesis_store.api.store_service import StoreServicer
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.pools import Pools
from synthesis_store.retention.housekeeping import Caretaker
from synthesis_store.settings import StoreSettings

log = logging.getLogger(__name__)


async def serve(settings: StoreSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; ready once the database and the content are open."""
    registry = CollectorRegistry()
    show_program("store", registry, settings.tls, settings.disk_places)
    gate = Gate()
    server = GrpcServer(
        settings.listen,
        RpcMetrics("store", registry),
        limits=settings.limits,
        tls=settings.tls,
        gate=gate,
    )
    show_readiness("store", registry, server.unready_reason)
    with (
        closing(FolderLock(settings.data_dir, "HFMDS_DATA_DIR")),
        MetricsServer(settings.metrics_listen, registry, server.unready_reason) as metrics_http,
    ):
        engine = await asyncio.to_thread(open_tables, settings)
        blobs = await asyncio.to_thread(open_blobs, settings)
        metrics = StoreMetrics(registry)
        pools = await asyncio.to_thread(open_pools, settings, engine, blobs, metrics)
        exclusions = await asyncio.to_thread(ExclusionRecords, engine, gate)
        servicer = StoreServicer(pools, exclusions)
        servicer.add_to(server)
        caretaker = Caretaker(pools, settings.look_every_seconds, settings.collect_every_seconds)
        async with (
            aclosing(servicer),  # a seal must not go on in a folder whose lock another may have
            server.serving(Shutdown(settings.shutdown_grace_seconds)),
        ):
            await server.set_ready(True)
            tending = [caretaker.tend(), exclusions.keep_looking()]
            tasks = [asyncio.create_task(each) for each in tending]
            with (
                database_look(engine) as database,
                watching(
                    {"the database": database, "content": blobs.look},
                    settings.storage_patience_seconds,
                ) as trouble,
                published_addresses(
                    settings.address_file, grpc=server.address, metrics=metrics_http.address
                ),
            ):
                async with server.following(trouble):
                    await stop.wait()
            for task in tasks:
                task.cancel()


def open_tables(settings: StoreSettings) -> Engine:
    """The store's database, with the tables that this version works with."""
    engine = open_database(settings.resolved_database_url, "synthesis_store")
    log.info("database opened", extra={"database": shown_url(engine)})
    Schema("synthesis_store").prepare(engine)
    return engine


def open_blobs(settings: StoreSettings) -> Blobs:
    """The content, kept where the settings say."""
    return open_location(
        settings.resolved_blobs_url, settings.data_dir / "cache", settings.blobs_cache_max_bytes
    ).place()


def open_pools(
    settings: StoreSettings, engine: Engine, blobs: Blobs, metrics: StoreMetrics
) -> Pools:
    """The pools in the database and the content."""
    staging = Staging(settings.data_dir / "uploads", settings.max_blob_bytes)
    pools = Pools(
        engine,
        Content(blobs, staging),
        metrics,
        _now,
        replica=replica_name(settings.data_dir),
        max_blob_bytes=settings.max_blob_bytes,
        upload_ttl=timedelta(seconds=settings.upload_ttl_seconds),
        keep_snapshots=settings.keep_snapshots,
    )
    pools.recover()
    return pools


def main() -> None:
    """The console script."""
    sys.exit(run("synthesis_store", StoreSettings, serve))


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    main()
