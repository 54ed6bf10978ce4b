"""A coordinator and a store with scripted answers, over real gRPC.

Threads instead of asyncio: the command under test runs its own event loop in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from hfmds.domain.devices import Device
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.pools import PoolStatus, Snapshot
from hfmds.domain.runs import Round, Run, RunState
from hfmds.v1 import admin_pb2, admin_pb2_grpc, synthesis_store_pb2, synthesis_store_pb2_grpc
from hfmds.wire.conversions.admin_calls import (
    device_message,
    new_run_id,
    round_message,
    run_message,
    spec_from,
)
from hfmds.wire.conversions.store_calls import pool_message, snapshot_message
from hfmds.wire.pages import first_page, page
from tests.cli.values import a_run


class FakeCoordinator(admin_pb2_grpc.AdminServiceServicer):
    """A coordinator with runs. It sends `changes` to every watcher, one message each.

    Its pages have at most two entries for any page size.
    """

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.rounds: list[Round] = []
        self.devices: list[Device] = []
        self.changes: list[tuple[Run, list[Round]]] = []
        self.model = b""
        self.watched_after: list[int] = []
        self.of_later_version: set[str] = set()  # ids of runs with an unknown method
        self.lost_answers = 0  # number of lost answers to CreateRun

    def CreateRun(self, request: Any, context: Any) -> Any:
        spec = spec_from(request.spec)
        run = a_run(request.run_id or new_run_id(spec), spec=spec)
        self.runs[run.run_id] = run
        if self.lost_answers:
            self.lost_answers -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection is cut")
        return admin_pb2.CreateRunResponse(run=run_message(run))

    def ListRuns(self, request: Any, context: Any) -> Any:
        runs, token = page(
            map(run_message, self.runs.values()), 2, request.page_token, lambda run: run.run_id
        )
        for run in runs:
            if run.run_id in self.of_later_version:
                run.spec.recipe.ClearField("method")
        return admin_pb2.ListRunsResponse(runs=runs, next_page_token=token)

    def GetRun(self, request: Any, context: Any) -> Any:
        return admin_pb2.GetRunResponse(run=run_message(self._find(request.run_id, context)))

    def ListRounds(self, request: Any, context: Any) -> Any:
        self._find(request.run_id, context)
        later = [round_message(d) for d in self.rounds if d.number > request.after_round]
        return admin_pb2.ListRoundsResponse(rounds=first_page(later, 2))

    def WatchRun(self, request: Any, context: Any) -> Iterator[Any]:
        self.watched_after.append(request.after_round)
        for run, rounds in self.changes:
            yield admin_pb2.WatchRunResponse(
                run=run_message(run),
                new_rounds=[round_message(d) for d in rounds if d.number > request.after_round],
            )

    def PauseRun(self, request: Any, context: Any) -> Any:
        return admin_pb2.PauseRunResponse(run=self._steer(request, context, RunState.PAUSED))

    def ResumeRun(self, request: Any, context: Any) -> Any:
        return admin_pb2.ResumeRunResponse(run=self._steer(request, context, RunState.RUNNING))

    def CancelRun(self, request: Any, context: Any) -> Any:
        return admin_pb2.CancelRunResponse(run=self._steer(request, context, RunState.CANCELLED))

    def ListDevices(self, request: Any, context: Any) -> Any:
        devices, token = page(
            map(device_message, self.devices), 2, request.page_token, lambda d: d.device_id
        )
        return admin_pb2.ListDevicesResponse(devices=devices, next_page_token=token)

    def DownloadModel(self, request: Any, context: Any) -> Iterator[Any]:
        for start in range(0, len(self.model), 1000):
            yield admin_pb2.DownloadModelResponse(data=self.model[start : start + 1000])

    def _find(self, run_id: str, context: Any) -> Run:
        if run_id not in self.runs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no run {run_id}")
        return self.runs[run_id]

    def _steer(self, request: Any, context: Any, state: RunState) -> Any:
        self._find(request.run_id, context)
        self.runs[request.run_id] = a_run(request.run_id, state)
        return run_message(self.runs[request.run_id])


class FakeStore(synthesis_store_pb2_grpc.SynthesisStoreServiceServicer):
    """A store with snapshots and their shards, which counts downloads."""

    def __init__(self, *snapshots: Snapshot, shards: tuple[bytes, ...] = ()) -> None:
        self.snapshots = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
        self.content = {digest_of(shard): shard for shard in shards}
        self.downloaded: list[Digest] = []
        self.pool: PoolStatus | None = None

    def ListSnapshots(self, request: Any, context: Any) -> Any:
        return synthesis_store_pb2.ListSnapshotsResponse(
            snapshots=[
                snapshot_message(snapshot)
                for snapshot in self.snapshots.values()
                if request.run_id in ("", snapshot.spec.run_id)
            ]
        )

    def GetPool(self, request: Any, context: Any) -> Any:
        if self.pool is None or request.pool_id != self.pool.pool_id:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no pool {request.pool_id}")
        return synthesis_store_pb2.GetPoolResponse(pool=pool_message(self.pool))

    def GetSnapshot(self, request: Any, context: Any) -> Any:
        if request.snapshot_id not in self.snapshots:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no {request.snapshot_id}")
        snapshot = self.snapshots[request.snapshot_id]
        return synthesis_store_pb2.GetSnapshotResponse(snapshot=snapshot_message(snapshot))

    def DownloadShard(self, request: Any, context: Any) -> Iterator[Any]:
        digest = Digest(request.digest.sha256, request.digest.size_bytes)
        self.downloaded.append(digest)
        yield synthesis_store_pb2.DownloadShardResponse(data=self.content[digest][request.offset :])


@contextmanager
def serving(servicer: FakeCoordinator | FakeStore, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve until the block ends, and yield the address."""
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    if isinstance(servicer, FakeCoordinator):
        admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    else:
        synthesis_store_pb2_grpc.add_SynthesisStoreServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
