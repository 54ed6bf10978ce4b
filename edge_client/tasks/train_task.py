"""A training task: from the assignment to an update on disk."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from edge_client.device.own_images import Images
from edge_client.metrics import EdgeMetrics
from edge_client.tasks.downloads import Fetched, TaskDownloads
from edge_client.tasks.finished_results import FinishedResults
from edge_client.tasks.workbench import Workbench
from hfmds.algorithm.device_memory import finish_training
from hfmds.algorithm.local_work import Progress
from hfmds.domain.learning import LabelledImages, Traffic
from hfmds.domain.tasks import Assignment, TaskStage, TrainWork, UpdateReport
from hfmds.wire.tensors import encode_update

log = logging.getLogger(__name__)


class TrainTask:
    """Trains the model on the device's own images and on a snapshot."""

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

    async def run(
        self, task: Assignment, work: TrainWork, stages: asyncio.Queue[TaskStage]
    ) -> UpdateReport:
        """Fetch, train and store the update."""
        images = self._images.labelled_for(task.recipe)  # refuses before any byte is moved
        fetched = await self._downloads.fetch(
            task,
            snapshot_id=work.snapshot_id,
            task_bytes=2 * task.weights.size_bytes,  # the update is about as large as the model
        )
        stages.put_nowait(TaskStage.DOWNLOADED)
        train = partial(self._train, task, images, fetched)
        report = await self._bench.compute(task, "training", train)
        self._metrics.training_loss.set(report.loss)
        return report

    def _train(
        self, task: Assignment, images: LabelledImages, fetched: Fetched, progress: Progress
    ) -> UpdateReport:
        local = self._bench.local_work(task, "train", images, fetched.shards)
        synthetic = len(local.pool) if local.pool else 0
        log.info("training on %d own and %d synthetic images", len(images), synthetic)
        with self._bench.meter("train", progress) as meter:
            trained = self._bench.engine.train(local, meter.progress)
        packed, memory = finish_training(local, trained)
        report = UpdateReport(
            self._results.put(encode_update(packed), progress),
            trained.samples,
            trained.loss,
            Traffic(received_bytes=fetched.received_bytes),
            meter.seconds,
            self._bench.cost(meter),
        )
        self._results.keep(task, "train", memory, report, progress)
        return report
