"""Serves the coordinator: opens its storage and its ports, and closes them in good order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing

from prometheus_client import CollectorRegistry

from coordinator.identity.wiring import open_identity
from coordinator.monitoring.live_counts import LiveCounts
from coordinator.monitoring.metrics import Metrics
from coordinator.replicas.notices import Notices
from coordinator.replicas.replica import Replica
from coordinator.settings import CoordinatorSettings
from coordinator.web.json_api import JsonApi
from coordinator.web.page_access import FindAdmin, PageAccess
from coordinator.web.page_server import WebServer
from coordinator.wiring import App, Environment, build, open_tables
from hfmds.plans.plan_library import PlanLibrary
from hfmds.service.client.certificate_rotation import following_rotation
from hfmds.service.client.peer import Peer
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
from hfmds.wire.clients.store_client import StoreClient

_STORAGE_THREADS = 12  # fewer than the database's connections


async def serve(settings: CoordinatorSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. The coordinator is ready once its runs go on."""
    registry = CollectorRegistry()
    show_program("coordinator", registry, settings.tls, settings.disk_places)
    metrics = Metrics(registry)
    rpc_metrics, gate = RpcMetrics("coordinator", registry), Gate()
    server = GrpcServer(
        settings.listen, rpc_metrics, limits=settings.limits, tls=settings.tls, gate=gate
    )
    show_readiness("coordinator", registry, server.unready_reason)
    store = StoreClient(Peer("synthesis store", settings.store, "HFMDS_STORE", settings.tls))
    with (
        closing(FolderLock(settings.data_dir, "HFMDS_DATA_DIR")),
        MetricsServer(settings.metrics_listen, registry, server.unready_reason) as metrics_http,
    ):
        loop = asyncio.get_running_loop()
        # Each call that waits for a commit holds a thread, so one thread per core is too few.
        loop.set_default_executor(ThreadPoolExecutor(_STORAGE_THREADS, "storage"))
        engine = await asyncio.to_thread(open_tables, settings)
        # Only one process can open SQLite's file, so that process always leads.
        replica = Replica(engine) if engine.dialect.name == "postgresql" else None
        notices = replica.notices if replica else Notices()
        library = PlanLibrary(settings.plans_dir, settings.plans_max_bytes)
        environment = Environment(store, library, gate, loop)
        app = await asyncio.to_thread(build, settings, engine, notices, metrics, environment)
        app.devices.add_to(server)
        app.admin.add_to(server)
        leases = app.devices.leases
        identity = await asyncio.to_thread(open_identity, settings, engine, gate, store, leases)
        identity.add_to(server)
        await asyncio.to_thread(app.drivers.show_ended_runs)
        if replica:
            await asyncio.to_thread(
                replica.join,
                app.drivers,
                app.registry,
                app.contents.marks(),
                metrics,
                settings.leader_lease_seconds,
            )
        else:
            await asyncio.to_thread(app.drivers.lead)  # before a call can create another run
            metrics.set_leading(True)
        shutdown = Shutdown(settings.shutdown_grace_seconds)
        async with (
            following_rotation(settings.tls, store),
            LiveCounts(app.counts, registry).refreshing(),
            identity.revocations.following(),
            server.serving(shutdown),
            identity.serving_tokens(settings, rpc_metrics, app.admin, shutdown) as tokens,
            _serving_page(settings, app, store, identity.tokens.admin, gate) as page,
        ):
            gc.freeze()  # modules and tables stay: the collector need not look at them again
            await server.set_ready(True)
            content = app.contents.marks()
            with (
                database_check(engine) as database,
                watching(
                    {
                        "the database": database,
                        "content": lambda: check_blobs(content),
                    },
                    settings.storage_patience_seconds,
                ) as trouble,
                published_addresses(
                    settings.address_file,
                    grpc=server.address,
                    metrics=metrics_http.address,
                    **tokens,
                    **page,
                ),
            ):
                async with server.following(trouble):
                    await stop.wait()
            app.close()  # devices that wait for work go at once
            app.drivers.stop()
            app.admin.runs.end_watches()
            stopping = asyncio.create_task(shutdown.stop())  # from now on it is not ready
            if replica:
                await asyncio.to_thread(replica.leave)
            await stopping
        await asyncio.to_thread(app.drivers.close, shutdown.left_seconds())
    await store.close()


@asynccontextmanager
async def _serving_page(
    settings: CoordinatorSettings, app: App, store: StoreClient, find_admin: FindAdmin, gate: Gate
) -> AsyncIterator[dict[str, str]]:
    """Serve the web page inside the block, if it is set; give its address for the file."""
    if settings.web_listen is None:
        yield {}
        return
    access = PageAccess(settings.web_listen, settings.tls, find_admin, gate)
    api = JsonApi(app.admin.runs, app.admin.overview, store, access)
    server = WebServer(settings.web_listen, settings.tls, access, api)
    async with server.serving():
        yield {"web": server.address}
