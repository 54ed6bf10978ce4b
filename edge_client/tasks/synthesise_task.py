"""A synthesis task: from the assignment to a batch of synthetic images on disk."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from functools import partial

from edge_client.device.own_images import Images
from edge_client.metrics import EdgeMetrics
from edge_client.tasks.downloads import Fetched, TaskDownloads
from edge_client.tasks.finished_results import FinishedResults
from edge_client.tasks.workbench import Workbench
from hfmds.algorithm.leakage.leakage_filter import releasable
from hfmds.algorithm.leakage.measurement import summarise_leakage
from hfmds.algorithm.local_work import Progress, SynthesisHealth
from hfmds.domain.learning import LabelledImages, Traffic
from hfmds.domain.recipe import Recipe
from hfmds.domain.tasks import Assignment, SynthesisReport, TaskStage
from hfmds.errors import InvalidInput
from hfmds.wire.tensors import encode_batch

log = logging.getLogger(__name__)


class SynthesiseTask:
    """Makes synthetic images and withholds those that the run's limits refuse."""

    def __init__(
        self,
        images: Images,
        downloads: TaskDownloads,
        bench: Workbench,
        results: FinishedResults,
        metrics: EdgeMetrics,
    ) -> None:
        self._images = images
        self._downloads = downloads
        self._bench = bench
        self._results = results
        self._metrics = metrics

    async def run(self, task: Assignment, stages: asyncio.Queue[TaskStage]) -> SynthesisReport:
        """Fetch, synthesise and store the batch."""
        images = self._images.labelled_for(task.recipe)  # refuses before any byte is moved
        fetched = await self._downloads.fetch(
            task, task_bytes=task.weights.size_bytes + _bytes_of_pixels(task.recipe)
        )
        stages.put_nowait(TaskStage.DOWNLOADED)
        synthesise = partial(self._synthesise, task, images, fetched)
        return await self._bench.compute(task, "synthesis", synthesise)

    def _synthesise(
        self, task: Assignment, images: LabelledImages, fetched: Fetched, progress: Progress
    ) -> SynthesisReport:
        log.info("synthesising from %d own images", len(images))
        local = self._bench.local_work(task, "synthesise", images)
        with self._bench.meter("synthesise", progress) as meter:
            synthesis = self._bench.engine.synthesise(local, meter.progress)
        health = synthesis.health
        if health:
            _require_sound(health)
        log.info("synthesis is done", extra=dataclasses.asdict(health) if health else {})
        released = releasable(synthesis.batch, task.recipe.pool)
        withheld = len(synthesis.batch) - len(released)
        if withheld:
            log.info("%d synthetic images are withheld by the pool's policy", withheld)
            self._metrics.withheld_samples.inc(withheld)
        ssim = summarise_leakage(released.ssim_paired, released.ssim_nearest)
        cost = self._bench.cost(
            meter,
            withheld_samples=withheld,
            ssim_paired_max=ssim.paired_max,
            ssim_nearest_max=ssim.nearest_max,
        )
        report = SynthesisReport(
            self._results.put(encode_batch(released), progress),
            samples=len(released),
            leakage=summarise_leakage(released.psnr_paired, released.psnr_nearest),
            synthetic_accuracy=health.accuracy if health else None,
            traffic=Traffic(received_bytes=fetched.received_bytes),
            synthesis_seconds=meter.seconds,
            device=cost,
        )
        self._results.keep(task, "synthesise", synthesis.memory, report, progress)
        self._metrics.observe_batch(report.leakage, ssim, report.synthetic_accuracy)
        return report


def _bytes_of_pixels(recipe: Recipe) -> int:
    """Return about the largest size of the batch that a device makes."""
    value_bytes = 2 if recipe.pool.pixel_type == "fp16" else 1
    return recipe.method.samples_per_device * math.prod(recipe.model.image_shape) * value_bytes


def _require_sound(health: SynthesisHealth) -> None:
    losses = health.matching_loss, health.classification_loss
    if not all(map(math.isfinite, losses)):
        raise InvalidInput(
            f"synthesis diverged: its losses are {losses[0]} and {losses[1]}; lower "
            "hfmds.learning_rate, or check the normalisation and the incoming weights"
        )
