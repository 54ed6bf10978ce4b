"""Starts the coordinator: `python -m coordinator`. Wires its parts and does nothing else."""

from __future__ import annotations

import asyncio
import sys
import time

import torch
from prometheus_client import CollectorRegistry

from coordinator.content import RunContents
from coordinator.dispatch import Dispatch
from coordinator.held_out import HeldOut
from coordinator.metrics import Metrics
from coordinator.parts import Parts
from coordinator.registry import Registry
from coordinator.run_records import RunRecords
from coordinator.runs import Runs
from coordinator.servicer import AdminServicer, CoordinatorServicer
from coordinator.settings import CoordinatorSettings
from coordinator.tables import create_tables
from coordinator.task_records import TaskRecords
from hfmds.service.metrics_http import MetricsServer
from hfmds.service.peer import Peer
from hfmds.service.process import published_addresses, run
from hfmds.service.rpc_metrics import RpcMetrics
from hfmds.service.server import GrpcServer
from hfmds.storage.database import open_database
from hfmds.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from hfmds.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from hfmds.wire.store_client import StoreClient


async def serve(settings: CoordinatorSettings, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    torch.set_num_threads(settings.threads)
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    server = GrpcServer(
        settings.listen,
        RpcMetrics("coordinator", registry),
        max_concurrent_rpcs=settings.max_concurrent_rpcs,
    )
    engine = await asyncio.to_thread(open_database, settings.resolved_database_url)
    await asyncio.to_thread(create_tables, engine)
    contents = RunContents(
        settings.resolved_blobs_url, settings.data_dir / "staging", settings.max_blob_bytes
    )
    run_records, tasks = RunRecords(engine), TaskRecords(engine)
    devices = Registry(engine, tasks, time.time, settings.device_away_seconds)
    dispatch = Dispatch(
        run_records, tasks, devices, contents, metrics, time.time, settings.retry_seconds
    )
    store = StoreClient(Peer("synthesis store", settings.store, "HFMDS_STORE"))
    parts = Parts(
        runs=run_records,
        tasks=tasks,
        registry=devices,
        contents=contents,
        dispatch=dispatch,
        store=store,
        held_out=HeldOut(settings.held_out),
        metrics=metrics,
        clock=time.time,
        loop=asyncio.get_running_loop(),
    )
    runs = Runs(parts)
    metrics.count(devices=devices.list, runs=runs.list)
    server.add(
        add_CoordinatorServiceServicer_to_server,
        CoordinatorServicer(dispatch),
        "hfmds.v1.CoordinatorService",
    )
    server.add(add_AdminServiceServicer_to_server, AdminServicer(runs), "hfmds.v1.AdminService")
    await server.start()
    with MetricsServer(settings.metrics_listen, registry, server.unready_reason) as http:
        await asyncio.to_thread(runs.open)
        await server.set_ready(True)
        with published_addresses(settings.address_file, grpc=server.address, metrics=http.address):
            await stop.wait()
        dispatch.close()
        await server.stop(settings.shutdown_grace_seconds)
        await asyncio.to_thread(runs.close, settings.shutdown_grace_seconds)
    await store.close()
    engine.dispose()


def main() -> None:
    """The `hfmds-coordinator` command."""
    sys.exit(run("coordinator", CoordinatorSettings, serve))


if __name__ == "__main__":
    main()
