"""An evaluation task: from the assignment to a report on disk."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from edge_client.device.own_images import Images
from edge_client.tasks.downloads import Fetched, TaskDownloads
from edge_client.tasks.finished_results import FinishedResults
from edge_client.tasks.workbench import Workbench
from hfmds.algorithm.local_work import Progress
from hfmds.domain.learning import LabelledImages, Traffic
from hfmds.domain.tasks import Assignment, EvaluationReport, TaskStage

log = logging.getLogger(__name__)


class EvaluateTask:
    """Measures the model on the device's held-out images."""

    def __init__(
        self, held_out: Images, downloads: TaskDownloads, bench: Workbench, results: FinishedResults
    ) -> None:
        self._held_out = held_out
        self._downloads = downloads
        self._bench = bench
        self._results = results

    async def run(self, task: Assignment, stages: asyncio.Queue[TaskStage]) -> EvaluationReport:
        """Fetch, evaluate and store the report."""
        images = self._held_out.labelled_for(task.recipe)  # refuses before any byte is moved
        fetched = await self._downloads.fetch(task)
        stages.put_nowait(TaskStage.DOWNLOADED)
        evaluate = partial(self._evaluate, task, images, fetched)
        return await self._bench.compute(task, "evaluation", evaluate)

    def _evaluate(
        self, task: Assignment, images: LabelledImages, fetched: Fetched, progress: Progress
    ) -> EvaluationReport:
        log.info("evaluating on %d own images", len(images))
        with self._bench.meter("evaluate", progress) as meter:
            local = self._bench.local_work(task, "evaluate", images)
            evaluation = self._bench.engine.evaluate(local, meter.progress)
        traffic = Traffic(received_bytes=fetched.received_bytes)
        report = EvaluationReport(evaluation, traffic, meter.seconds, self._bench.cost(meter))
        self._results.keep(task, "evaluate", {}, report, progress)
        return report
