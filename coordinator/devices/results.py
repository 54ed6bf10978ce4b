"""Counts the results that devices hand in, and notifies their runs.

Results that arrive at about the same time are counted in one transaction: alone, each would cost a
thread and a commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.devices.registry import Registry
from coordinator.devices.request_batches import Batcher
from coordinator.monitoring.log_fields import task_context
from coordinator.monitoring.metrics import Metrics
from coordinator.records.acceptance import Acceptance, HandedIn
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.tasks import Task
from coordinator.replicas.notices import Notices, Topic
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import Traffic
from hfmds.domain.methods import TaskKind
from hfmds.domain.tasks import EvaluationReport, SynthesisReport, UpdateReport
from hfmds.errors import Unavailable, WrongState
from hfmds.service.monitoring import tracing
from hfmds.storage.blobs import Blobs
from hfmds.wire.conversions.records import encode_report

log = logging.getLogger(__name__)

_MAX_BATCH = 64  # results in one transaction; other writers wait for it

Report: TypeAlias = UpdateReport | SynthesisReport | EvaluationReport


@dataclass(frozen=True, slots=True)
class Submission:
    """A result that a device hands in."""

    device_id: str
    task_id: str
    result: Digest
    report: Report
    blobs: Blobs | None = None  # where the result's bytes are; None: the coordinator has none


_Counting: TypeAlias = tuple[Task, Submission]


class Results:
    """Counts each result once. Lives on the event loop."""

    def __init__(
        self,
        tasks: TaskRecords,
        registry: Registry,
        metrics: Metrics,
        notices: Notices,
        clock: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._registry = registry
        self._metrics = metrics
        self._notices = notices
        self._clock = clock
        self._batches = Batcher[_Counting, Acceptance](self._count_batch, _MAX_BATCH)

    async def submit_synthesis(self, device_id: str, task_id: str, report: SynthesisReport) -> bool:
        """Count a batch that is at the store; return True if it counted before."""
        task = await asyncio.to_thread(self.require_open, device_id, task_id, "synthesise")
        return await self.count(task, Submission(device_id, task_id, report.batch, report))

    async def submit_evaluation(
        self, device_id: str, task_id: str, report: EvaluationReport
    ) -> bool:
        """Count what a device has measured; return True if it counted before."""
        task = await asyncio.to_thread(self.require_open, device_id, task_id, "evaluate")
        measured = EvaluationReport(report.evaluation, Traffic(), 0.0)
        result = digest_of(encode_report(measured))
        return await self.count(task, Submission(device_id, task_id, result, report))

    def require_open(self, device_id: str, task_id: str, kind: TaskKind) -> Task:
        """Return a device's task of this kind, which is open or has a result; blocks."""
        with self._metrics.counting_late():
            task = self._tasks.get_pending(device_id, task_id)
        if task.key.kind != kind:
            raise WrongState(f"task {task_id!r} is to {task.key.kind}, not to {kind}")
        return task

    async def count(self, task: Task, submission: Submission) -> bool:
        """Count a result exactly once; return True if it counted before.

        On return the result is durable.
        """
        with self._metrics.counting_late():
            acceptance = await self._batches.ask((task, submission))
        self._registry.note_call(submission.device_id)
        if not acceptance.already:
            tracing.note("accepted")
        return acceptance.already

    def _count_batch(self, batch: Sequence[_Counting]) -> Sequence[Acceptance | Exception]:
        acceptances = self._accept([_handed_in(submission) for _, submission in batch])
        # In this thread, because the device may have hung up: its result counts all the same.
        for (task, submission), acceptance in zip(batch, acceptances, strict=True):
            if isinstance(acceptance, Acceptance):
                self._note(task, submission, acceptance)
        return acceptances

    def _accept(self, results: Sequence[HandedIn]) -> Sequence[Acceptance | Exception]:
        """Accept the results in one transaction; if one breaks it, each in its own."""
        try:
            return self._tasks.accept_each(results, self._clock())
        except Unavailable:
            raise
        except Exception as error:  # its device gets it
            if len(results) == 1:
                return [error]
            log.exception("%d results could not be counted together", len(results))
        return [self._accept([result])[0] for result in results]

    def _note(self, task: Task, submission: Submission, acceptance: Acceptance) -> None:
        """Note an accepted result in the metrics and the log, and notify its run."""
        if not acceptance.already:
            with task_context(task):
                log.info("result accepted", extra={"result": str(submission.result)})
            self._metrics.funnel.accepted(task.key.kind, acceptance.stage)
            self._metrics.fleet.count(submission.report)
            self._metrics.moved(submission.report.traffic)
        if acceptance.moves_round:
            self._notices.post(Topic.RUN, task.key.run_id)


def _handed_in(submission: Submission) -> HandedIn:
    return HandedIn(
        submission.device_id,
        submission.task_id,
        submission.result,
        encode_report(submission.report),
        submission.blobs,
    )
