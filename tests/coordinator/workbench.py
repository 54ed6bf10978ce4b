"""A coordinator for tests, with real storage, a store in memory and no sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from coordinator.api.device_service import CoordinatorServicer
from coordinator.devices.check_in import CheckIns
from coordinator.devices.downloads import Downloads
from coordinator.devices.leases import Leases
from coordinator.devices.plans import Library
from coordinator.devices.results import Results
from coordinator.devices.uploads import Uploads
from coordinator.monitoring.metrics import Metrics
from coordinator.oversight.overview import Overview
from coordinator.records.tables import Base
from coordinator.replicas.notices import Notices
from coordinator.runs.drivers import Drivers
from coordinator.runs.run_control import DriverRecords
from coordinator.runs.runs import Runs
from coordinator.settings import CoordinatorSettings
from coordinator.wiring import App, Environment, build
from hfmds.domain.devices import Device, DeviceProfile
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import Evaluation, LeakageSummary, Traffic, Weights
from hfmds.domain.methods import FedAvg, Hfmds, Method
from hfmds.domain.pools import Contribution, PoolSpec, Snapshot
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, Sampling, TrainingRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import Run, RunSpec
from hfmds.domain.tasks import (
    Assignment,
    EvaluateWork,
    EvaluationReport,
    RetryLater,
    SynthesiseWork,
    SynthesisReport,
    UpdateReport,
)
from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.server.server import GrpcServer
from hfmds.storage.database import open_database
from hfmds.wire.tensors import StoredWeights, encode_weights
from tests.support.databases import database_of
from tests.support.waiting import eventually

PROFILE = DeviceProfile(samples=5, software_version="test", engine="none")
LEAKAGE = LeakageSummary(9.0, 10.0, 11.0, 12.0, 13.0, 14.0)
MODEL = ModelSpec(channels=1, height=16, width=16, classes=3)
Work = Callable[[Weights, Assignment], Weights]


def make_spec(
    *,
    rounds: int = 1,
    devices: int = 1,
    seed: int = 0,
    deadline_seconds: float = 60.0,
    lease_seconds: float = 60.0,
    refresh_every: int = 0,
    cohort_size: int = 0,
    method: Method | None = None,
    sampling: Sampling | None = None,
    **policy: Any,
) -> RunSpec:
    """Return the specification of a small run, by default without over-selection."""
    if method is None:
        every = refresh_every
        method = (
            Hfmds(every_rounds=every, first_round=every, samples_per_device=2, steps=1)
            if every
            else FedAvg()
        )
    recipe = Recipe(
        model=MODEL,
        normalisation=Normalisation((0.5,), (0.5,)),
        rounds=rounds,
        seed=seed,
        training=TrainingRecipe(),
        method=method,
        cohort_size=cohort_size,
        sampling=sampling or Sampling(),
    )
    policy.setdefault("over_selection", 1.0)
    return RunSpec(recipe, RoundPolicy(devices, deadline_seconds, lease_seconds, **policy))


class PoolStoreInMemory:
    """A store that opens and seals pools in memory, and may be away."""

    def __init__(self) -> None:
        self.away = False
        self.refusal: HfmdsError | None = None
        self.hangs = False
        self.calls = 0
        self.lost: set[str] = set()  # devices whose batches the pool lost
        self.withdrawn: set[str] = set()  # devices whose images pools refuse
        self.opened: dict[str, PoolSpec] = {}
        self.sealed: dict[str, tuple[Contribution, ...]] = {}
        self.released: list[str] = []

    async def open_pool(
        self, pool_id: str, spec: PoolSpec, referenced_snapshots: Sequence[str] = ()
    ) -> frozenset[str]:
        await self._answer()
        assert self.opened.setdefault(pool_id, spec) == spec
        return frozenset(self.withdrawn)

    async def seal_pool(
        self, pool_id: str, contributions: Sequence[Contribution]
    ) -> tuple[Snapshot, tuple[Contribution, ...]]:
        await self._answer()
        assert pool_id in self.opened
        named = tuple(contributions)
        assert self.sealed.setdefault(pool_id, named) == named
        missing = tuple(item for item in named if item.device_id in self.lost)
        snapshot = Snapshot(
            snapshot_id=f"snapshot-of-{pool_id}",
            pool_id=pool_id,
            spec=self.opened[pool_id],
            samples=2 * (len(named) - len(missing)),
            class_histogram=(2, 0, 0),
            duplicates=0,
            leakage=LEAKAGE,
            sealed_at=datetime.now(UTC),
            size_bytes=1,
        )
        return snapshot, missing

    async def release_run(self, run_id: str) -> int:
        await self._answer()
        self.released.append(run_id)
        return len(self.sealed)

    async def _answer(self) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.away:
            raise Unavailable("the synthesis store is away")
        if self.refusal:
            raise self.refusal


@dataclass
class Workbench:
    """A coordinator, and methods that act as devices."""

    app: App
    store: PoolStoreInMemory
    registry: CollectorRegistry

    def servicer(self) -> CoordinatorServicer:
        """Return the gRPC service for devices."""
        return self.app.devices

    @property
    def check_ins(self) -> CheckIns:
        return self.app.devices.check_ins

    @property
    def leases(self) -> Leases:
        return self.app.devices.leases

    @property
    def downloads(self) -> Downloads:
        return self.app.devices.downloads

    @property
    def uploads(self) -> Uploads:
        return self.app.devices.uploads

    @property
    def results(self) -> Results:
        return self.app.devices.results

    @property
    def records(self) -> DriverRecords:
        return DriverRecords.on(self.app.engine)

    @property
    def runs(self) -> Runs:
        return self.app.admin.runs

    @property
    def drivers(self) -> Drivers:
        return self.app.drivers

    @property
    def overview(self) -> Overview:
        return self.app.admin.overview

    def devices(self) -> Sequence[Device]:
        """Return the devices as operators see them."""
        return self.overview.device_list.page()

    async def create(self, spec: RunSpec, run_id: str = "run") -> Run:
        return await asyncio.to_thread(self.runs.create, run_id, spec)

    async def check_in(self, device_id: str, wait_seconds: float = 300.0) -> Assignment:
        outcome = await self.check_ins.check_in(device_id, PROFILE, wait_seconds, "")
        assert isinstance(outcome, Assignment), outcome
        return outcome

    def weights(self, assignment: Assignment) -> StoredWeights:
        blobs = self.app.contents.of(assignment.run_id).blobs
        return StoredWeights(blobs.local_path(assignment.weights), "weights")

    async def arrive(self, *device_ids: str) -> list[asyncio.Task[Assignment]]:
        """Let devices wait for work, and return when the coordinator knows them all."""
        waiting = [asyncio.create_task(self.check_in(device)) for device in device_ids]
        await eventually(lambda: {*device_ids} <= {*self.app.registry.view("").present})
        return waiting

    def put_update(self, assignment: Assignment, data: bytes) -> Digest:
        """Upload an update without counting it, as a kill between the two steps does."""
        return self.app.contents.of(assignment.run_id).blobs.put_bytes(data)

    async def arrive_and_leave(self, *device_ids: str) -> None:
        """Let devices ask for work once, so that the coordinator counts on them."""
        for device_id in device_ids:
            outcome = await self.check_ins.check_in(device_id, PROFILE, 0.0, "")
            assert isinstance(outcome, RetryLater), outcome

    async def submit(
        self, device_id: str, assignment: Assignment, data: bytes, loss: float = 1.5
    ) -> bool:
        """Upload and submit an update."""
        return await self.submit_chunks(device_id, assignment, digest_of(data), [data], loss=loss)

    async def submit_chunks(
        self,
        device_id: str,
        assignment: Assignment,
        update: Digest,
        pieces: Iterable[bytes],
        offset: int = 0,
        loss: float = 1.5,
    ) -> bool:
        """Upload these pieces of an update from an offset, and submit it."""

        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        report = UpdateReport(
            update, samples=5, loss=loss, traffic=Traffic(7, 3), training_seconds=1
        )
        return await self.uploads.submit(device_id, assignment.task_id, report, offset, chunks())

    async def do(
        self, device_id: str, assignment: Assignment, work: Work, loss: float = 1.5
    ) -> bool:
        """Complete an assignment as a device does."""
        if isinstance(assignment.work, SynthesiseWork):
            batch = digest_of(f"{assignment.work.pool_id} {device_id}".encode())
            report = SynthesisReport(batch, 2, LEAKAGE, 1.0, Traffic(1, 2), 0.5)
            return await self.results.submit_synthesis(device_id, assignment.task_id, report)
        if isinstance(assignment.work, EvaluateWork):
            return await self.evaluate(device_id, assignment, Evaluation(0.5, 1.0, 4))
        update = encode_weights(work(self.weights(assignment), assignment))
        return await self.submit(device_id, assignment, update, loss)

    async def evaluate(
        self, device_id: str, assignment: Assignment, evaluation: Evaluation, traffic: int = 0
    ) -> bool:
        evaluated = EvaluationReport(evaluation, Traffic(received_bytes=traffic), 0.5)
        return await self.results.submit_evaluation(device_id, assignment.task_id, evaluated)

    async def play(self, device_id: str, tasks: int, work: Work) -> list[Assignment]:
        """Act as a device for this number of tasks."""
        done = []
        for _ in range(tasks):
            assignment = await self.check_in(device_id)
            await self.do(device_id, assignment, work)
            done.append(assignment)
        return done

    async def until(self, condition: Callable[[Run], bool], run_id: str = "run") -> Run:
        """Watch the run until the condition holds."""
        async with asyncio.timeout(60):
            async for run, _ in self.runs.watch(run_id, 0):
                if condition(run):
                    return run
        raise AssertionError(f"the run ended as {run}")


@asynccontextmanager
async def workbench(
    folder: Path,
    *,
    store: PoolStoreInMemory | None = None,
    held_out: str | None = None,
    away_seconds: float = 30.0,
    max_waiting: int = 1000,
    clock: Callable[[], float] = time.time,
    library: Library | None = None,
    gate: Gate | None = None,
) -> AsyncIterator[Workbench]:
    """Open a coordinator on this folder. Opening the folder again is a restart."""
    engine = open_database(database_of(folder))
    Base.metadata.create_all(engine)
    metrics_registry = CollectorRegistry()
    settings = CoordinatorSettings(
        data_dir=folder,
        held_out=held_out,
        device_away_seconds=away_seconds,
        retry_seconds=0.5,
        max_waiting_devices=max_waiting,
        max_blob_bytes=1 << 24,
        plans_max_bytes=1 << 20,
    )
    store = store or PoolStoreInMemory()
    app = build(
        settings,
        engine,
        Notices(),
        Metrics(metrics_registry, clock),
        Environment(store, library, gate or Gate(), asyncio.get_running_loop(), clock),
    )
    bench = Workbench(app, store, metrics_registry)
    await asyncio.to_thread(bench.drivers.show_ended_runs)
    await asyncio.to_thread(bench.drivers.lead)
    try:
        yield bench
    finally:
        bench.app.close()
        bench.runs.end_watches()
        await asyncio.to_thread(bench.drivers.close, 10.0)
        engine.dispose()


def echo(weights: Weights, assignment: Assignment) -> Weights:
    """Return unchanged weights, as a device that learns nothing."""
    return trained(weights, assignment)


def nudge(amount: float) -> Work:
    """Return work that adds an amount to every weight."""

    def work(weights: Weights, assignment: Assignment) -> Weights:
        return {n: w + np.float32(amount) for n, w in trained(weights, assignment).items()}

    return work


def trained(weights: Weights, assignment: Assignment) -> Weights:
    """Return the weights that the method of the task trains in its round."""
    method, t = assignment.recipe.method, assignment.round_number
    return {name: weights[name] for name in weights if method.trains(name, t)}


async def model_after(bench: Workbench, round_number: int, run_id: str = "run") -> bytes:
    models = bench.app.admin.models
    chunks = [chunk async for chunk in models.download(run_id, round_number)]
    return b"".join(chunks)


@asynccontextmanager
async def served(bench: Workbench) -> AsyncIterator[Peer]:
    """Serve the API of a workbench for devices on loopback."""
    server = GrpcServer("127.0.0.1:0", RpcMetrics("coordinator", CollectorRegistry()))
    bench.servicer().add_to(server)
    await server.start()
    try:
        yield Peer("coordinator", server.address, "HFMDS_COORDINATOR")
    finally:
        await server.stop(0)
