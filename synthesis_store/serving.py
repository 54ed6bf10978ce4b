"""Serves the store: opens its storage and its ports, and closes them in good order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing

from prometheus_client import CollectorRegistry

from hfmds.service.monitoring.metrics_server import MetricsServer
from hfmds.service.monitoring.program_metrics import show_program, show_readiness
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.process import published_addresses
from hfmds.service.process.shutdown import Shutdown
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.server.server import GrpcServer
from hfmds.storage.blobs import check_blobs
from hfmds.storage.database import database_check
from hfmds.storage.files import FolderLock
from hfmds.storage.health import watching
from synthesis_store.settings import StoreSettings
from synthesis_store.wiring import build, open_blobs, open_tables


async def serve(settings: StoreSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. The store is ready once its database and content are open."""
    registry, gate = CollectorRegistry(), Gate()
    show_program("store", registry, settings.tls, settings.disk_places)
    rpc_metrics = RpcMetrics("store", registry)
    server = GrpcServer(
        settings.listen, rpc_metrics, limits=settings.limits, tls=settings.tls, gate=gate
    )
    show_readiness("store", registry, server.unready_reason)
    with (
        closing(FolderLock(settings.data_dir, "HFMDS_DATA_DIR")),
        MetricsServer(settings.metrics_listen, registry, server.unready_reason) as metrics_http,
    ):
        engine = await asyncio.to_thread(open_tables, settings)
        blobs = await asyncio.to_thread(open_blobs, settings)
        app = await asyncio.to_thread(build, settings, engine, blobs, registry, gate)
        app.servicer.add_to(server)
        await asyncio.to_thread(app.inventory.refresh)  # metrics are complete at the first scrape
        async with (
            aclosing(app.servicer),  # ends the seal before another process can lock the folder
            server.serving(Shutdown(settings.shutdown_grace_seconds)),
        ):
            await server.set_ready(True)
            tasks = [
                asyncio.create_task(app.housekeeper.work()),
                asyncio.create_task(app.exclusions.keep_fresh()),
                asyncio.create_task(app.inventory.keep_fresh()),
            ]
            with (
                database_check(engine) as database,
                watching(
                    {"the database": database, "content": lambda: check_blobs(blobs)},
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
