"""One task from beginning to end: fetch, compute, store, submit.

A result is on disk before it is sent. So a device that was killed or cut off submits the stored
result and computes nothing twice. The agent takes care of leases and of waiting for work.
"""

from __future__ import annotations

import asyncio

from edge_client.device.device_folder import Report
from edge_client.tasks.evaluate_task import EvaluateTask
from edge_client.tasks.finished_results import FinishedResults
from edge_client.tasks.submitter import Submitter
from edge_client.tasks.synthesise_task import SynthesiseTask
from edge_client.tasks.train_task import TrainTask
from hfmds.domain.tasks import Assignment, EvaluateWork, SynthesiseWork, TaskStage, TrainWork


class TaskRunner:
    """Runs tasks, one at a time."""

    def __init__(
        self,
        train: TrainTask,
        synthesise: SynthesiseTask,
        evaluate: EvaluateTask,
        results: FinishedResults,
        submitter: Submitter,
    ) -> None:
        self._train = train
        self._synthesise = synthesise
        self._evaluate = evaluate
        self._results = results
        self._submitter = submitter

    async def run(self, task: Assignment, stages: asyncio.Queue[TaskStage]) -> Report:
        """Do the work and hand in its result; return the report that was accepted.

        The queue gets each stage that the task reaches.
        Raises TooLate when the task is over. After any other error the task cannot be done.
        """
        report = await asyncio.to_thread(self._results.find, task)
        if report is None:
            report = await self._do(task, stages)
        stages.put_nowait(TaskStage.COMPUTED)
        return await self._submitter.submit(task, report)

    async def _do(self, task: Assignment, stages: asyncio.Queue[TaskStage]) -> Report:
        match task.work:
            case TrainWork() as work:
                return await self._train.run(task, work, stages)
            case SynthesiseWork():
                return await self._synthesise.run(task, stages)
            case EvaluateWork():
                return await self._evaluate.run(task, stages)
