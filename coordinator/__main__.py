"""The coordinator as a process: wires its parts, serves until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from coordinator.api.operations import Oversight
from coordinator.api.servicer import AdminServicer, CoordinatorServicer
from coordinator.devices.dispatch import Dispatch
from coordinator.devices.plans import Plans
from coordinator.devices.registry import Registry
from coordinator.identity.wiring import open_membership
from coordinator.monitoring.device_standing import head_count
from coordinator.monitoring.metrics import Metrics
from coordinator.parts import Parts, PoolStore
from coordinator.records.drain import DrainRecords
from coordinator.records.events import EventRecords
from coordinator.records.funnel import FunnelRecords, StageNotes
from coordinator.records.phases import PhaseRecords
from coordinator.records.rounds import RoundRecords
from coordinator.records.runs import RunRecords
from coordinator.records.tasks import TaskRecords
from coordinator.replicas.notices import Switchboard
from coordinator.replicas.replica import Replica
from coordinator.runs.content import RunContents
from coordinator.runs.held_out import HeldOut
from coordinator.runs.learning import Learning
from coordinator.runs.runs import Runs
from coordinator.settings import CoordinatorSettings
from coordinator.web.server import serving_page
from hfmds.plans.library import PlanLibrary
from hfmds.service.client.certificate_rotation import following_rotation
from hfmds.service.client.peer import Peer
from hfmds.service.limits.retry_schedule import Pace
from hfmds.service.monitoring.http import MetricsServer
from hfmds.service.monitoring.program_metrics import show_program, show_readiness
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.process.allocator import reuse_freed_memory
from hfmds.service.process.collector import spare_what_stays
from hfmds.service.process.process import published_addresses, run
from hfmds.service.process.shutdown import Shutdown
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.server.server import GrpcServer
from hfmds.storage.database import database_look, open_database, shown_url
from hfmds.storage.files import FolderLock
from hfmds.storage.health import watching
from hfmds.storage.locations import open_location
from hfmds.storage.schema import Schema
from hfmds.wire.clients.store_client import StoreClient

log = logging.getLogger(__name__)

_STORAGE_THREADS = 12  # fewer than the database's connections


async def serve(settings: CoordinatorSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; ready once storage is open and the runs are going on."""
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
        # Who waits for a commit holds a thread: of as many as there are cores, none would be left.
        loop.set_default_executor(ThreadPoolExecutor(_STORAGE_THREADS, "storage"))
        engine = await asyncio.to_thread(open_tables, settings)
        # SQLite's file is one process's: there it is alone, and leads.
        replica = Replica(engine) if engine.dialect.name == "postgresql" else None
        switchboard = replica.switchboard if replica else Switchboard()
        parts = await asyncio.to_thread(
            open_parts, settings, engine, switchboard, metrics, store, loop
        )
        runs = Runs(parts)
        metrics.count(devices=parts.registry.states, runs=runs.census)
        metrics.watch(drained=parts.drain.is_on, stages=parts.funnel.stages)
        metrics.know(members=lambda: head_count(engine, time.time()))
        CoordinatorServicer(parts.dispatch, gate).add_to(server)
        oversight = Oversight(parts)
        admin = AdminServicer(runs, oversight)
        admin.add_to(server)
        membership = await asyncio.to_thread(
            open_membership, settings, engine, gate, store, parts.dispatch.leave
        )
        membership.add_to(server)
        await asyncio.to_thread(runs.open)
        if replica:
            lease_seconds = settings.leader_lease_seconds
            await asyncio.to_thread(replica.join, runs, parts, lease_seconds)
        else:
            await asyncio.to_thread(runs.lead)  # before anyone can create another
            metrics.leads(True)
        shutdown = Shutdown(settings.shutdown_grace_seconds)
        async with (
            following_rotation(settings.tls, store),
            membership.lookout.looking_out(),
            server.serving(shutdown),
            membership.serving_tokens(settings, rpc_metrics, admin, shutdown) as tokens,
            serving_page(
                settings.web_listen,
                runs,
                oversight,
                store,
                tls=settings.tls,
                holder=membership.tokens.admin,
                gate=gate,
            ) as page,
        ):
            spare_what_stays()
            await server.set_ready(True)
            with (
                database_look(engine) as database,
                watching(
                    {"the database": database, "content": parts.contents.marks().look},
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
            parts.dispatch.close()  # who waits for work or watches a run goes at once
            runs.leave_off()
            stopping = asyncio.create_task(shutdown.stop())  # from now on it is not ready
            if replica:
                await asyncio.to_thread(replica.leave)
            await stopping
        await asyncio.to_thread(runs.close, shutdown.left_seconds())
    await store.close()


def open_tables(settings: CoordinatorSettings) -> Engine:
    """The coordinator's database, with the tables that this version works with."""
    engine = open_database(settings.resolved_database_url, "coordinator")
    log.info("database opened", extra={"database": shown_url(engine)})
    Schema("coordinator").prepare(engine)
    return engine


def open_parts(
    settings: CoordinatorSettings,
    engine: Engine,
    switchboard: Switchboard,
    metrics: Metrics,
    store: PoolStore,
    loop: asyncio.AbstractEventLoop,
) -> Parts:
    """The coordinator's parts, kept where the settings say."""
    learning = Learning(settings.threads)
    held_out = HeldOut(settings.held_out, learning)
    blobs = open_location(
        settings.resolved_blobs_url, settings.data_dir / "cache", settings.blobs_cache_max_bytes
    )
    contents = RunContents(blobs, settings.data_dir / "uploads", settings.max_blob_bytes)
    contents.purge(settings.upload_ttl_seconds, time.time())
    runs, tasks = RunRecords(engine), TaskRecords(engine)
    drain, stages = DrainRecords(engine, time.time), StageNotes(engine, metrics.funnel.reached)
    registry = Registry(engine, tasks, time.time, settings.device_away_seconds)
    library = PlanLibrary(settings.plans_dir, settings.plans_max_bytes)
    plans = Plans(engine, blobs, library, settings.plans_max_bytes)
    return Parts(
        runs=runs,
        rounds=RoundRecords(engine),
        phases=PhaseRecords(engine),
        tasks=tasks,
        events=EventRecords(engine),
        drain=drain,
        stages=stages,
        funnel=FunnelRecords(engine),
        registry=registry,
        contents=contents,
        dispatch=Dispatch(
            runs,
            tasks,
            registry,
            contents,
            metrics,
            drain,
            stages,
            time.time,
            Pace(settings.check_ins_per_second, settings.retry_seconds),
            settings.max_waiting_devices,
            plans,
        ),
        switchboard=switchboard,
        store=store,
        learning=learning,
        held_out=held_out,
        metrics=metrics,
        clock=time.time,
        loop=loop,
    )


def main() -> None:
    """The console script."""
    reuse_freed_memory()
    sys.exit(run("coordinator", CoordinatorSettings, serve))


if __name__ == "__main__":
    main()
