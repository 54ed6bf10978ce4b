"""A coordinator, a store and an engine in memory, and a device that uses them."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from edge_client.agent import Agent
from edge_client.console import StatusLine
from edge_client.device.conditions import Conditions
from edge_client.device.device_folder import DeviceFolder
from edge_client.device.memory_limit import MemoryLimit
from edge_client.device.traffic import TrafficBudget
from edge_client.metrics import EdgeMetrics
from edge_client.pace import Pace
from edge_client.peers import Peers
from edge_client.retry import Retry
from edge_client.settings import EdgeSettings
from edge_client.wiring import Machine, build
from hfmds.algorithm.local_work import (
    LocalWork,
    Memory,
    Progress,
    Synthesis,
    SynthesisHealth,
    TrainedModel,
)
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import Evaluation, LabelledImages, LeakageSummary, SyntheticBatch
from hfmds.domain.methods import Hfmds
from hfmds.domain.pools import PoolSpec, Shard, SharedShard, Snapshot
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.domain.tasks import (
    Assignment,
    EvaluateWork,
    EvaluationReport,
    FailureCause,
    Finished,
    RetryLater,
    SynthesiseWork,
    SynthesisReport,
    TaskStage,
    TrainWork,
    UnreadableTask,
    UpdateReport,
    UploadState,
)
from hfmds.errors import LimitExceeded, NotFound, Unavailable
from hfmds.service.client.peer import Peer
from hfmds.storage.blobs import Blobs
from hfmds.wire.chunks import Content, Sender, fetch_all
from hfmds.wire.tensors import encode_batch, encode_weights
from tests.support.still_images import StillImages

Outcome = Assignment | UnreadableTask | RetryLater | Finished

MODEL = ModelSpec("fake", channels=1, height=2, width=2, classes=3)
RECIPE = Recipe(MODEL, Normalisation((0.5,), (0.5,)), rounds=9, method=Hfmds())
WEIGHTS = {"w": np.arange(3, dtype=np.float32)}
COORDINATOR = Peer("coordinator", "127.0.0.1:7401", "HFMDS_COORDINATOR")
STORE = Peer("synthesis store", "127.0.0.1:7411", "HFMDS_STORE")
CHUNK = 16


def images(*labels: int) -> LabelledImages:
    """Return one 1x2x2 image per label, with the label as pixels."""
    values = np.array(labels, np.int64)
    return LabelledImages(
        np.tile(values.astype(np.uint8)[:, None, None, None], (1, 1, 2, 2)), values
    )


def batch(*labels: int) -> SyntheticBatch:
    psnr = np.linspace(8, 12, len(labels), dtype=np.float32)
    return SyntheticBatch(images(*labels), psnr, psnr + 1, psnr / 100, psnr / 50)


def unavailable(peer: Peer) -> Unavailable:
    return Unavailable(f"{peer} is unavailable; is {peer.setting} its address?")


class Faults:
    """Errors for the next calls of each method, and a record of all calls."""

    def __init__(self) -> None:
        self.errors: dict[str, list[Exception]] = {}
        self.calls: list[str] = []

    def meet(self, method: str) -> None:
        self.calls.append(method)
        if errors := self.errors.get(method):
            raise errors.pop(0)


class Shelf:
    """Content in memory, served in chunks. The next `garbled` downloads arrive altered."""

    def __init__(self) -> None:
        self.contents: dict[Digest, bytes] = {}
        self.garbled = 0
        self.broken_after: int | None = None  # bytes until the next download breaks

    def put(self, data: bytes) -> Digest:
        self.contents[digest_of(data)] = data
        return digest_of(data)

    async def download(self, content: Content, *digests: Digest) -> int:
        async def chunks(lacking: Sequence[Digest], offset: int) -> AsyncGenerator[bytes, None]:
            data = b"".join(self.contents[digest] for digest in lacking)
            if self.garbled:
                self.garbled -= 1
                data = data[:-1] + bytes([data[-1] ^ 1])
            for start in range(offset, len(data), CHUNK):
                if self.broken_after is not None and start >= self.broken_after:
                    self.broken_after = None
                    raise unavailable(COORDINATOR)
                yield data[start : start + CHUNK]

        return await fetch_all(content, digests, chunks)

    async def upload(self, digest: Digest, blobs: Blobs) -> int:
        async def query() -> UploadState:
            complete = digest in self.contents
            return UploadState(digest.size_bytes if complete else 0, complete)

        async def take(offset: int, chunks: AsyncIterator[bytes]) -> int:
            if digest in self.contents:
                return 0
            assert self.put(b"".join([chunk async for chunk in chunks])) == digest
            return digest.size_bytes

        return await Sender().send(blobs, digest, query, take)


class FakeCoordinator(Faults):
    """A coordinator that assigns its `work` in order, and then answers Finished."""

    def __init__(self, *work: Outcome) -> None:
        super().__init__()
        self.work = list(work)
        self.shelf = Shelf()
        self.weights = self.shelf.put(encode_weights(WEIGHTS))
        self.plan: Digest | None = None  # the plan of every task
        self.profiles: list[DeviceProfile] = []
        self.waits: list[float] = []  # waiting times that devices requested
        self.updates: dict[str, UpdateReport] = {}
        self.syntheses: dict[str, SynthesisReport] = {}
        self.evaluations: dict[str, EvaluationReport] = {}
        self.failures: dict[str, str] = {}
        self.renewals = 0
        self.stages: list[TaskStage] = []
        self.causes: dict[str, FailureCause] = {}

    async def check_in(
        self, profile: DeviceProfile, wait_seconds: float, run_id: str = ""
    ) -> Outcome:
        self.waits.append(wait_seconds)
        self.meet("check_in")
        self.profiles.append(profile)
        return self.work.pop(0) if self.work else Finished("the run is over")

    async def renew_lease(self, task_id: str, stage: TaskStage | None = None) -> float:
        self.meet("renew_lease")
        self.renewals += 1
        if stage:
            self.stages.append(stage)
        return 30.0

    async def download(self, task_id: str, digest: Digest, content: Content) -> int:
        self.meet("download")
        return await self.shelf.download(content, digest)

    async def submit_update(self, task_id: str, report: UpdateReport, blobs: Blobs) -> bool:
        self.meet("submit_update")
        await self.shelf.upload(report.update, blobs)
        already = task_id in self.updates
        self.updates[task_id] = report
        return already

    async def submit_synthesis(self, task_id: str, report: SynthesisReport) -> bool:
        self.meet("submit_synthesis")
        already = task_id in self.syntheses
        self.syntheses[task_id] = report
        return already

    async def submit_evaluation(self, task_id: str, report: EvaluationReport) -> bool:
        self.meet("submit_evaluation")
        already = task_id in self.evaluations
        self.evaluations[task_id] = report
        return already

    async def report_failure(self, task_id: str, reason: str, cause: FailureCause) -> None:
        self.meet("report_failure")
        self.causes[task_id] = cause
        self.failures[task_id] = reason

    async def leave(self) -> None:
        self.meet("leave")


class FakeStore(Faults):
    """A store that serves its snapshots and keeps the batches it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.snapshots: dict[str, Snapshot] = {}
        self.pools: dict[tuple[str, str], Digest] = {}
        self.made_with: dict[tuple[str, str], Digest] = {}  # batches by pool and device
        self.seeds: list[int] = []  # seeds of the requested shares

    def seal(self, snapshot_id: str, *batches: SyntheticBatch) -> None:
        self.seal_shards(snapshot_id, *(self.shelf.put(encode_batch(b)) for b in batches))

    def seal_shards(self, snapshot_id: str, *digests: Digest) -> None:
        shards = tuple(Shard(digest, 1, "someone") for digest in digests)
        self.snapshots[snapshot_id] = Snapshot(
            snapshot_id,
            pool_id="pool",
            spec=PoolSpec("run", 1, digest_of(b""), MODEL, 100, "hfmds"),
            samples=len(shards),
            class_histogram=(0, 0, 0),
            duplicates=0,
            leakage=LeakageSummary(*[9.0] * 6),
            sealed_at=datetime.now(UTC),
            size_bytes=sum(shard.digest.size_bytes for shard in shards),
            shards=shards,
        )

    async def get_share(
        self, snapshot_id: str, *, max_bytes: int, balanced: bool, seed: int
    ) -> tuple[SharedShard, ...]:
        self.meet("get_share")
        assert balanced
        self.seeds.append(seed)
        if snapshot_id not in self.snapshots:
            raise NotFound(f"there is no snapshot {snapshot_id!r}")
        shards = self.snapshots[snapshot_id].shards
        sizes = accumulate(shard.digest.size_bytes for shard in shards)
        fitting = sum(not max_bytes or size <= max_bytes for size in sizes)
        if not fitting:
            raise LimitExceeded("not even one shard fits")
        return tuple(SharedShard(shard, missing=True) for shard in shards[:fitting])

    async def download_shards(
        self, snapshot_id: str, digests: Sequence[Digest], content: Content
    ) -> int:
        self.meet("download_shards")
        return await self.shelf.download(content, *digests)

    async def put_batch(
        self, pool_id: str, device_id: str, batch: Digest, blobs: Blobs, weights: Digest
    ) -> int:
        self.meet("put_batch")
        self.made_with[pool_id, device_id] = weights
        sent = await self.shelf.upload(batch, blobs)
        self.pools[pool_id, device_id] = batch
        return sent


class FakeEngine:
    """An engine that adds the seed to the weights, copies images and records its work.

    It counts the tasks of each kind in its memory, and adds that to the result: so equal results
    mean equal origins.
    """

    name = "fake-cpu"
    needs_plan = False

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.enough: Callable[[], bool] = lambda: True  # computes until this is true
        self.works: list[LocalWork] = []
        self.remembers = True
        self.health: SynthesisHealth | None = SynthesisHealth(0.1, 0.2, 0.9, 1.0, 0.5, 1.0)
        self.abandoned = False
        self.running = False
        self.started = threading.Event()

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        memory, before = self._work_on(work, progress)
        weights = {name: w + work.seed + before for name, w in work.weights.items()}
        return TrainedModel(weights, len(work.shard), loss=0.5, memory=memory)

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        memory, before = self._work_on(work, progress)
        synthetic = batch(*work.shard.labels.tolist())
        synthetic.images.pixels[:] += np.uint8(work.seed + before)
        return Synthesis(synthetic, memory, self.health)

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        self.works.append(work)
        self._compute(progress)
        return Evaluation(accuracy=0.75, loss=float(work.seed), samples=len(work.shard))

    def _work_on(self, work: LocalWork, progress: Progress) -> tuple[Memory, int]:
        self.works.append(work)
        self._compute(progress)
        before = int(work.memory["tasks"][0]) if work.memory else 0
        memory = {"tasks": np.array([before + 1], np.float32)} if self.remembers else {}
        return memory, before

    def _compute(self, progress: Progress) -> None:
        if self.error:
            raise self.error
        self.running = True
        self.started.set()
        steps = 0
        try:
            while not (self.enough() and steps):
                steps += 1
                progress(steps, 1000)
                time.sleep(0.001)
        except BaseException:
            self.abandoned = True
            raise
        finally:
            self.running = False


class ScriptedConditions(Conditions):
    """Conditions whose refusal a test decides."""

    def __init__(self, refusal: Callable[[], str | None]) -> None:
        super().__init__((), {})
        self.refusal = refusal  # type: ignore[method-assign]

    def holds(self, name: str) -> bool | None:
        return None


class AskingBudget(TrafficBudget):
    """A budget that refuses tasks, but lets the device ask for others."""

    def refusal(self) -> str | None:
        return None


@dataclass
class Device:
    """A device on a folder. A second one on the same folder is the device after a restart."""

    folder: Path
    coordinator: FakeCoordinator = field(default_factory=FakeCoordinator)
    store: FakeStore = field(default_factory=FakeStore)
    engine: FakeEngine = field(default_factory=FakeEngine)
    local: StillImages = field(default_factory=lambda: StillImages("test data", images(0, 1, 2)))
    held_out: StillImages | None = None
    cache_max_bytes: int = 10_000_000
    pool_max_bytes: int = 0
    tells_cost: bool = True
    run_id: str = ""
    free_memory_bytes: Callable[[], int] = lambda: 0
    once: bool = False
    refusal: Callable[[], str | None] = lambda: None  # of the owner's conditions
    look_every_seconds: float = 60.0  # longer than any test
    traffic_bytes_per_day: int | None = None
    sleep: Callable[[float], Awaitable[None]] | None = None
    tell_stage_after_seconds: float = 60.0  # longer than any test

    def __post_init__(self) -> None:
        self.slept: list[float] = []

    async def work(self, *work: Outcome) -> None:
        """Run the device until the coordinator has no more of this work."""
        self.coordinator.work.extend(work)
        state = DeviceFolder(self.folder, "dev-1")
        try:
            await self._agent(state).run()
        finally:
            state.close()

    def _agent(self, state: DeviceFolder) -> Agent:
        settings = EdgeSettings(
            data="not read",
            state_dir=self.folder,
            run=self.run_id,
            once=self.once,
            pool_max_bytes=self.pool_max_bytes,
            report_cost=self.tells_cost,
        ).model_copy(update={"cache_max_bytes": self.cache_max_bytes})  # smaller than allowed
        pace = Pace(
            look_every_seconds=self.look_every_seconds,
            tell_stage_after_seconds=self.tell_stage_after_seconds,
            wait_for_room_seconds=0.001,
            sleep=self.sleep or self._sleep,
        )
        self.peers = Peers(
            self.coordinator,
            Retry(COORDINATOR, pace.backoff, rng=random.Random(1), sleep=pace.sleep),
            self.store,
            Retry(STORE, pace.backoff, rng=random.Random(2), sleep=pace.sleep),
        )
        self.budget = AskingBudget(self.folder / "traffic.json", self.traffic_bytes_per_day)
        machine = Machine(
            self.engine,
            self.local,
            self.held_out or self.local,
            MemoryLimit(None, free_bytes=lambda: self.free_memory_bytes()),
            ScriptedConditions(lambda: self.refusal()),
            self.budget,
            StatusLine(sys.stderr, wanted=False),
        )
        self.registry = CollectorRegistry()
        return build(settings, state, machine, self.peers, EdgeMetrics(self.registry), pace)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0.001)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"hfmds_edge_{name}", labels)

    def train_task(
        self,
        task_id: str = "t1",
        round_number: int = 1,
        snapshot_id: str | None = None,
        **more: int,
    ) -> Assignment:
        return self._task(task_id, round_number, TrainWork(snapshot_id), **more)

    def synthesise_task(self, task_id: str = "s1", round_number: int = 1) -> Assignment:
        return self._task(task_id, round_number, SynthesiseWork("pool-1"))

    def evaluate_task(self, task_id: str = "e1", round_number: int = 1) -> Assignment:
        return self._task(task_id, round_number, EvaluateWork())

    def _task(
        self,
        task_id: str,
        round_number: int,
        work: TrainWork | SynthesiseWork | EvaluateWork,
        seed: int = 7,
    ) -> Assignment:
        return Assignment(
            task_id,
            "run",
            "run.1",
            round_number,
            30.0,
            RECIPE,
            seed,
            self.coordinator.weights,
            work,
            plan=self.coordinator.plan,
        )
