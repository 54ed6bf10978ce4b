"""One task from beginning to end: fetch, compute, store, submit.

A result is on disk before it is sent. So a device that was killed or cut off submits the stored
result and computes nothing twice. The agent takes care of leases and of waiting for work.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from edge_client.device.content_cache import ContentCache
from edge_client.device.device_folder import DeviceFolder, Report
from edge_client.device.memory_limit import peak_memory_bytes
from edge_client.device.meter import Meter
from edge_client.device.own_images import Images
from edge_client.device.traffic import TrafficBudget
from edge_client.engines.computation import NO_OBSERVER, Observer, compute
from edge_client.engines.engine import Engine
from edge_client.metrics import EdgeMetrics
from edge_client.peers import Peers
from hfmds.algorithm.device_memory import finish_training, with_memory
from hfmds.algorithm.leakage.leakage_filter import releasable
from hfmds.algorithm.leakage.measurement import summarise_leakage
from hfmds.algorithm.local_work import LocalWork, Memory, Progress, SynthesisHealth
from hfmds.algorithm.pool import concatenate
from hfmds.algorithm.seeds import derive_seed
from hfmds.domain.digest import Digest
from hfmds.domain.learning import LabelledImages, Traffic
from hfmds.domain.methods import TaskKind
from hfmds.domain.pools import SharedShard
from hfmds.domain.recipe import Recipe
from hfmds.domain.tasks import (
    Assignment,
    DeviceReport,
    EvaluateWork,
    EvaluationReport,
    SynthesiseWork,
    SynthesisReport,
    TaskStage,
    TrainWork,
    UpdateReport,
)
from hfmds.errors import CorruptData, InvalidInput, LimitExceeded, Unavailable, WrongState
from hfmds.service.monitoring.tracing import span
from hfmds.wire.tensors import StoredWeights, encode_batch, encode_update, read_batch

log = logging.getLogger(__name__)

R = TypeVar("R")
Sent = TypeVar("Sent", UpdateReport, SynthesisReport)

Tell: TypeAlias = Callable[[TaskStage], None]
"""Gets each stage that a task reaches."""

_TRANSFER_ATTEMPTS = 3


class TaskRunner:
    """Runs tasks, one at a time."""

    def __init__(
        self,
        peers: Peers,
        engine: Engine,
        images: Images,
        state: DeviceFolder,
        cache: ContentCache,
        metrics: EdgeMetrics,
        held_out: Images | None = None,
        *,
        budget: TrafficBudget | None = None,
        observer: Observer = NO_OBSERVER,
        wait_for_room_seconds: float = 1.0,
        pool_max_bytes: int = 0,
        tells_cost: bool = True,
    ) -> None:
        """The device evaluates models on `held_out`, or else on the images that it trains on.

        `observer` follows each computation. On a full disk a result waits for room, which
        is looked for every so many seconds. Of a snapshot no more than `pool_max_bytes` are used; 0
        is no limit. With `tells_cost` the coordinator hears with each result what it cost.
        """
        self._coordinator, self._store = peers.coordinator, peers.store
        self._to_coordinator = peers.coordinator_retry.call
        self._to_store = peers.store_retry.call
        self._engine = engine
        self._images = images
        self._held_out = held_out or images
        self._state = state
        self._cache = cache
        self._metrics = metrics
        self._budget = budget
        self._observer = observer
        self._wait_for_room_seconds = wait_for_room_seconds
        self._pool_max_bytes = pool_max_bytes
        self._tells_cost = tells_cost
        self._share: tuple[str, tuple[Digest, ...]] = (
            "",
            (),
        )  # of the last snapshot; a share never changes

    async def run(self, task: Assignment, tell: Tell = lambda stage: None) -> Report:
        """Do the work and hand in its result; return the report that was accepted.

        `tell` is called with each stage that the task reaches.
        Raises TooLate when the task is over. After any other error the task cannot be done.
        """
        report = await asyncio.to_thread(self._finished_before, task)
        match task.work:
            case TrainWork(snapshot_id):
                report = report or await self._train(task, snapshot_id, tell)
            case SynthesiseWork():
                report = report or await self._synthesise(task, tell)
            case EvaluateWork():
                report = report or await self._evaluate(task, tell)
        tell(TaskStage.COMPUTED)
        return await self._submit(task, report)

    async def _submit(self, task: Assignment, report: Report) -> Report:
        """Send the result and hand it in; on return the coordinator has accepted it."""
        coordinator, blobs = self._coordinator, self._cache.content.blobs
        if isinstance(report, UpdateReport):
            report = _with_sent(report, report.update.size_bytes)
            submit = partial(coordinator.submit_update, task.task_id, report, blobs)
            with span("submit"):
                await self._restarting(lambda: self._to_coordinator(submit))
            # The coordinator does not ask for it again.
            await asyncio.to_thread(self._cache.remove, report.update)
        elif isinstance(report, SynthesisReport):
            assert isinstance(task.work, SynthesiseWork)
            put = partial(
                self._store.put_batch,
                task.work.pool_id,
                self._state.device_id,
                report.batch,
                blobs,
                task.weights,
            )
            with span("upload"):
                sent_bytes = await self._restarting(lambda: self._to_store(put))
            report = _with_sent(report, sent_bytes)
            with span("submit"):
                await self._to_coordinator(coordinator.submit_synthesis, task.task_id, report)
        else:
            with span("submit"):
                await self._to_coordinator(coordinator.submit_evaluation, task.task_id, report)
        return report

    def _finished_before(self, task: Assignment) -> Report | None:
        """Return the report of a task that an earlier process finished."""
        report = self._state.result(task.task_id)
        if report is None:
            return None
        content = _bytes_of(report)
        if content and not self._cache.claim(content):
            return None
        log.info("the result of this task is on disk; submitting it")
        return report

    # --- training -------------------------------------------------------------------------------

    async def _train(self, task: Assignment, snapshot_id: str | None, tell: Tell) -> UpdateReport:
        shard = self._images.labelled_for(task.recipe)  # refuses before any byte is moved
        self._require_traffic(
            2 * task.weights.size_bytes
        )  # the update is about as large as the model
        shards: tuple[Digest, ...] = ()
        with span("download"):
            received = await self._fetch_model(task)
            if snapshot_id:
                shards = await self._share_of(task, snapshot_id)
                received += await self._fetch_shards(task, snapshot_id, shards)
        await asyncio.to_thread(self._cache.evict, {*self._model(task), *shards})

        def work(progress: Progress) -> UpdateReport:
            pool = self._pool(shards) if shards else None
            log.info(
                "training on %d own and %d synthetic images", len(shard), len(pool) if pool else 0
            )
            local = self._local_work(task, "train", shard, pool)
            with self._meter("train", progress) as meter:
                trained = self._engine.train(local, meter.progress)
            packed, memory = finish_training(local, trained)
            update = self._put(encode_update(packed), progress)
            traffic = Traffic(received_bytes=received)
            report = UpdateReport(
                update, trained.samples, trained.loss, traffic, meter.seconds, self._cost(meter)
            )
            self._keep(task, "train", memory, report, progress)
            return report

        tell(TaskStage.DOWNLOADED)
        report = await self._compute(task, "training", work)
        self._metrics.training_loss.set(report.loss)
        return report

    def _pool(self, shards: Sequence[Digest]) -> LabelledImages:
        """Return the snapshot's images in the order of its manifest, as simulated fleets do."""
        return concatenate([read_batch(self._cache.path(d), f"shard {d}") for d in shards]).images

    # --- synthesis ------------------------------------------------------------------------------

    async def _synthesise(self, task: Assignment, tell: Tell) -> SynthesisReport:
        shard = self._images.labelled_for(task.recipe)
        self._require_traffic(task.weights.size_bytes + _bytes_of_pixels(task.recipe))
        with span("download"):
            received = await self._fetch_model(task)
        await asyncio.to_thread(self._cache.evict, self._model(task))

        def work(progress: Progress) -> SynthesisReport:
            log.info("synthesising from %d own images", len(shard))
            local = self._local_work(task, "synthesise", shard)
            with self._meter("synthesise", progress) as meter:
                made = self._engine.synthesise(local, meter.progress)
            if made.health:
                _require_sound(made.health)
            health = dataclasses.asdict(made.health) if made.health else {}
            log.info("synthesis is done", extra=health)
            released = releasable(made.batch, task.recipe.pool)
            withheld = len(made.batch) - len(released)
            if withheld:
                log.info("%d synthetic images are withheld by the pool's policy", withheld)
                self._metrics.withheld_samples.inc(withheld)
            batch = self._put(encode_batch(released), progress)
            ssim = summarise_leakage(released.ssim_paired, released.ssim_nearest)
            report = SynthesisReport(
                batch,
                samples=len(released),
                leakage=summarise_leakage(released.psnr_paired, released.psnr_nearest),
                synthetic_accuracy=made.health.accuracy if made.health else None,
                traffic=Traffic(received_bytes=received),
                synthesis_seconds=meter.seconds,
                device=self._cost(
                    meter,
                    withheld_samples=withheld,
                    ssim_paired_max=ssim.paired_max,
                    ssim_nearest_max=ssim.nearest_max,
                ),
            )
            self._keep(task, "synthesise", made.memory, report, progress)
            self._metrics.observe_batch(report.leakage, ssim, report.synthetic_accuracy)
            return report

        tell(TaskStage.DOWNLOADED)
        return await self._compute(task, "synthesis", work)

    # --- evaluation -----------------------------------------------------------------------------

    async def _evaluate(self, task: Assignment, tell: Tell) -> EvaluationReport:
        shard = self._held_out.labelled_for(task.recipe)
        with span("download"):
            received = await self._fetch_model(task)
        await asyncio.to_thread(self._cache.evict, self._model(task))
        tell(TaskStage.DOWNLOADED)

        def work(progress: Progress) -> EvaluationReport:
            log.info("evaluating on %d own images", len(shard))
            with self._meter("evaluate", progress) as meter:
                local = self._local_work(task, "evaluate", shard)
                found = self._engine.evaluate(local, meter.progress)
            traffic = Traffic(received_bytes=received)
            report = EvaluationReport(found, traffic, meter.seconds, self._cost(meter))
            self._keep(task, "evaluate", {}, report, progress)
            return report

        return await self._compute(task, "evaluation", work)

    # --- what it costs --------------------------------------------------------------------------

    @contextmanager
    def _meter(self, kind: TaskKind, progress: Progress) -> Iterator[Meter]:
        """Measure the engine's work inside; failed work is not counted."""
        with Meter(progress, self._metrics.step.labels(kind).observe) as meter:
            yield meter
        self._metrics.observe_cost(kind, meter.seconds, meter.cpu_seconds)

    def _cost(self, meter: Meter, **more: Any) -> DeviceReport | None:
        """Return the task's cost for the coordinator, if the owner allows it."""
        if not self._tells_cost:
            return None
        return DeviceReport(meter.steps, meter.cpu_seconds, peak_memory_bytes(), **more)

    # --- from one task to the next --------------------------------------------------------------

    def _local_work(
        self,
        task: Assignment,
        kind: TaskKind,
        shard: LabelledImages,
        pool: LabelledImages | None = None,
    ) -> LocalWork:
        """Describe the task to the engine, with what this device kept of earlier tasks."""
        kept = self._state.memory(
            task.run_uid, task.recipe.method.memory_of(kind), task.round_number
        )
        work = LocalWork(
            recipe=task.recipe,
            round_number=task.round_number,
            weights=StoredWeights(self._cache.path(task.weights), f"weights {task.weights}"),
            shard=shard,
            seed=task.seed,
            pool=pool,
            plan=self._cache.path(task.plan) if task.plan and self._engine.needs_plan else None,
        )
        return with_memory(work, kept)

    async def _compute(self, task: Assignment, what: str, work: Callable[[Progress], R]) -> R:
        with span("compute"):
            return await compute(
                f"round {task.round_number}, {what}", work, observer=self._observer
            )

    def _put(self, content: bytes, progress: Progress) -> Digest:
        return self._with_room((), lambda: self._cache.put(content), progress)

    def _keep(
        self, task: Assignment, kind: TaskKind, memory: Memory, report: Report, progress: Progress
    ) -> None:
        def save() -> None:
            # In this order: a task whose result is on disk does not make its memory again.
            self._state.save_memory(task.run_uid, kind, task.round_number, memory)
            self._state.save_result(task.task_id, report)

        content = _bytes_of(report)
        self._with_room((content,) if content else (), save, progress)

    def _with_room(self, needed: Sequence[Digest], save: Callable[[], R], progress: Progress) -> R:
        """Save a result; on a full disk, wait for room. Computing it again would cost more."""
        logged = False
        while True:
            try:
                return save()
            except Unavailable as error:
                if not logged:
                    log.error("%s; until then the result of this task waits in memory", error)
                    logged = True
                self._cache.evict(needed, max_bytes=0)  # drop what can be fetched again
            progress(1, 1)  # raises when the task is over
            time.sleep(self._wait_for_room_seconds)

    # --- moving content -------------------------------------------------------------------------

    def _model(self, task: Assignment) -> tuple[Digest, ...]:
        """Return the content that a task needs: weights, and a plan if the engine uses one."""
        plan = (task.plan,) if task.plan and self._engine.needs_plan else ()
        return (task.weights, *plan)

    async def _fetch_model(self, task: Assignment) -> int:
        """Fetch the model; return the bytes that crossed the network."""
        return sum([await self._fetch_from_coordinator(task, d) for d in self._model(task)])

    async def _fetch_from_coordinator(self, task: Assignment, digest: Digest) -> int:
        """Fetch content unless it is here; return the bytes that crossed the network."""
        if await asyncio.to_thread(self._cache.claim, digest):
            return 0
        await asyncio.to_thread(self._cache.make_room, digest.size_bytes, self._model(task))

        async def fetch() -> int:
            self._require_traffic(digest.size_bytes)  # also at each new attempt
            download, content = self._coordinator.download, self._cache.content
            return await self._to_coordinator(download, task.task_id, digest, content)

        return await self._restarting(fetch)

    async def _share_of(self, task: Assignment, snapshot_id: str) -> tuple[Digest, ...]:
        """Return the shards to train on, in order: all of the snapshot, or a share that fits.

        The seed belongs to the device and is the same in all rounds, so it fetches a shard once.
        """
        if self._share[0] != snapshot_id:
            seed = derive_seed(task.recipe.seed, "share", self._state.device_id)

            async def get() -> tuple[SharedShard, ...]:
                return await self._store.get_share(
                    snapshot_id, max_bytes=self._pool_max_bytes, balanced=True, seed=seed
                )

            try:
                share = await self._to_store(get)
            except LimitExceeded as error:
                raise LimitExceeded(f"{error}; raise HFMDS_POOL_MAX_BYTES") from error
            if not share:
                raise InvalidInput(f"snapshot {snapshot_id} has no shards")
            self._share = snapshot_id, tuple(shared.shard.digest for shared in share)
        return self._share[1]

    async def _fetch_shards(
        self, task: Assignment, snapshot_id: str, shards: Sequence[Digest]
    ) -> int:
        """Fetch the shards that are not here; return the bytes that crossed the network."""
        lacking = await asyncio.to_thread(
            lambda: [digest for digest in shards if not self._cache.claim(digest)]
        )
        # Counted here, because a broken attempt may have completed some shards.
        received = sum(digest.size_bytes for digest in lacking)
        if lacking:
            needed = {*self._model(task), *shards}
            await asyncio.to_thread(self._cache.make_room, received, needed)
            await self._restarting(lambda: self._download_shards(snapshot_id, lacking))
        return received

    async def _download_shards(self, snapshot_id: str, digests: Sequence[Digest]) -> int:
        download, content = self._store.download_shards, self._cache.content
        contains = content.blobs.contains  # an earlier attempt may have fetched some
        absent = await asyncio.to_thread(
            lambda: [digest for digest in digests if not contains(digest)]
        )
        self._require_traffic(sum(digest.size_bytes for digest in absent))
        return await self._to_store(download, snapshot_id, absent, content)

    def _require_traffic(self, needed_bytes: int) -> None:
        if self._budget:
            self._budget.require(needed_bytes)

    async def _restarting(self, transfer: Callable[[], Awaitable[R]]) -> R:
        """Repeat a transfer a few times when bytes arrive altered or the sides disagree."""
        try:
            for _ in range(_TRANSFER_ATTEMPTS - 1):
                try:
                    return await transfer()
                except (CorruptData, WrongState) as error:
                    log.warning("a transfer failed and starts again: %s", error)
            return await transfer()
        finally:
            if self._budget:
                await asyncio.to_thread(self._budget.save)


def _bytes_of_pixels(recipe: Recipe) -> int:
    """Return about the largest size of the batch that a device makes."""
    value_bytes = 2 if recipe.pool.pixel_type == "fp16" else 1
    return recipe.method.samples_per_device * math.prod(recipe.model.image_shape) * value_bytes


def _with_sent(report: Sent, sent_bytes: int) -> Sent:
    """Return the report with the bytes that its submission sends."""
    return dataclasses.replace(report, traffic=report.traffic + Traffic(sent_bytes=sent_bytes))


def _bytes_of(report: Report) -> Digest | None:
    """Return the content that a report is about; an evaluation has numbers only."""
    match report:
        case UpdateReport(update):
            return update
        case SynthesisReport(batch):
            return batch
        case EvaluationReport():
            return None


def _require_sound(health: SynthesisHealth) -> None:
    losses = health.matching_loss, health.classification_loss
    if not all(map(math.isfinite, losses)):
        raise InvalidInput(
            f"synthesis diverged: its losses are {losses[0]} and {losses[1]}; lower "
            "hfmds.learning_rate, or check the normalisation and the incoming weights"
        )
