"""The life of a device: ask for work, do it while the lease is renewed, ask again.

The agent runs until the coordinator has no more work, or until it is cancelled. The device gets an
unfinished task again at the next check-in, so it can stop at any moment. It also stops when its
owner's conditions do not hold. All waiting uses the monotonic clock: a wrong wall clock does no
harm.
"""

from __future__ import annotations

import asyncio
import logging

from edge_client.device.this_device import ThisDevice
from edge_client.leased_work import LeasedWork, Rest
from edge_client.metrics import EdgeMetrics
from edge_client.pace import Pace
from edge_client.peers import Peers
from edge_client.retry import bounded_pause
from edge_client.task_end import failure_cause, result_summary
from hfmds.domain.tasks import (
    Assignment,
    EvaluateWork,
    FailureCause,
    Finished,
    RetryLater,
    SynthesiseWork,
    TrainWork,
    UnreadableTask,
)
from hfmds.errors import Conflict, HfmdsError, NotFound, TooLate, Unavailable, WrongState
from hfmds.service.monitoring.logs import log_context
from hfmds.service.monitoring.tracing import note, span

log = logging.getLogger(__name__)

_KINDS = {TrainWork: "train", SynthesiseWork: "synthesise", EvaluateWork: "evaluate"}
_FIRST_WAIT_SECONDS = 5.0  # until the first answer, /readyz shows the coordinator as away


class Agent:
    """Runs one device."""

    def __init__(
        self,
        this_device: ThisDevice,
        peers: Peers,
        leased_work: LeasedWork,
        metrics: EdgeMetrics,
        pace: Pace,
        *,
        run_id: str = "",
        wait_seconds: float = 30.0,
        once: bool = False,
    ) -> None:
        """With `once` the device stops when there is no work."""
        self._this_device = this_device
        self._software_version = ""  # of the last profile
        self._coordinator = peers.coordinator
        self._to_coordinator = peers.coordinator_retry.call
        self._trouble = peers.coordinator_retry.trouble
        self._leased_work = leased_work
        self._metrics = metrics
        self._run_id = run_id
        self._wait_seconds = wait_seconds
        self._once = once
        self._pace = pace

    async def run(self) -> None:
        """Work until the coordinator has no more work for this device.

        Raises WrongState if the device works `once` and tasks failed.
        """
        failed = await self._run()
        if self._once and failed:
            raise WrongState(f"{failed} of this device's tasks failed; its log says why")

    async def _run(self) -> int:
        """Work to the end; return how many tasks failed."""
        failed = failures = 0
        dropped = idle_reason = ""
        while True:
            if not await self._may_work():
                return failed
            match await self._next_task():
                case Assignment() as task:
                    idle_reason = ""
                    outcome = await self._take(task)
                    failed += outcome == "failed"
                    # A task that comes again after it was late: the store says that it is over.
                    again = outcome == "late" and task.task_id == dropped
                    dropped = task.task_id if outcome == "late" else ""
                    failures = failures + 1 if outcome == "failed" or again else 0
                    if failures:  # a broken device must not load the coordinator
                        await self._pace.sleep(self._pace.backoff.ceiling(failures))
                case UnreadableTask() as task:
                    failures += 1
                    failed += 1
                    await self._refuse(task)
                    await self._pace.sleep(self._pace.backoff.ceiling(failures))
                case RetryLater(after_seconds, reason):
                    if reason != idle_reason:
                        log.info("waiting for work: %s", reason)
                        idle_reason = reason
                    if self._once:
                        return failed
                    await self._pace.sleep(bounded_pause(after_seconds))
                case Finished(reason):
                    log.info("no more work: %s", reason)
                    return failed

    async def _may_work(self) -> bool:
        """Wait until the device may work; return False if it is to stop instead."""
        shown_reason = ""
        while reason := await asyncio.to_thread(self._this_device.refusal, working=False):
            if not shown_reason:  # once, because the reason has a time that changes
                log.info("resting: %s", reason)
                shown_reason = reason
            if self._once:
                return False
            await self._pace.sleep(self._pace.look_every_seconds)
        if shown_reason:
            log.info("going on: the device may work again")
        return True

    async def _next_task(self) -> Assignment | UnreadableTask | RetryLater | Finished:
        # A device that works once must report that the coordinator does not answer.
        return await (self._check_in() if self._once else self._to_coordinator(self._check_in))

    async def _check_in(self) -> Assignment | UnreadableTask | RetryLater | Finished:
        profile = await asyncio.to_thread(self._this_device.profile)
        if not self._software_version:
            log.info("at work with %d images, on %s", profile.samples, profile.engine)
        self._software_version = profile.software_version
        wait_seconds = self._wait_seconds
        if self._trouble() and not self._once:
            wait_seconds = min(wait_seconds, _FIRST_WAIT_SECONDS)
        try:
            return await self._coordinator.check_in(profile, wait_seconds, self._run_id)
        except NotFound as error:
            # The device may start before its run is created, so it waits.
            raise Unavailable(f"{error}; HFMDS_RUN is {self._run_id!r}") from error

    async def _take(self, task: Assignment) -> str:
        """Do a task; return its outcome, as the metrics count it."""
        kind = _KINDS[type(task.work)]
        self._metrics.round.set(task.round_number)
        task_fields: dict[str, str | int] = {
            "run": task.run_id,
            "round": task.round_number,
            "task": task.task_id,
        }
        with log_context(**task_fields), span("task", task.traceparent, kind=kind, **task_fields):
            try:
                ending = await self._leased_work.do(task)
            except TooLate as error:
                reason = error.reason or "of another version"
                log.warning("too late (%s), the work is dropped: %s", reason, error)
                outcome = "late"
            except Conflict as error:
                log.warning("the coordinator does not want the result, it is dropped: %s", error)
                outcome = "late"
            except HfmdsError as error:
                log.error("task failed: %s", error)
                # `public` leaves out paths and names of this device.
                await self._report_failure(task.task_id, error.public, failure_cause(error))
                outcome = "failed"
            except Exception as error:
                log.exception("task failed")
                # The text of an unexpected error may quote real data, so it stays here.
                reason = f"unexpected {type(error).__name__}; the device's log has more"
                await self._report_failure(task.task_id, reason, FailureCause.UNEXPECTED)
                outcome = "failed"
            else:
                if isinstance(ending, Rest):
                    log.info("the task is left for now: %s", ending.reason)
                    await self._leave()
                    outcome = "left"
                else:
                    log.info("%s", result_summary(task, ending))
                    outcome = "accepted"
            note(outcome)
        self._metrics.tasks.labels(kind, outcome).inc()
        return outcome

    async def _refuse(self, task: UnreadableTask) -> None:
        """Give up a task of a later version; other runs may have work for this device."""
        reason = (
            f"edge client {self._software_version} cannot read its task "
            f"({task.problem}); upgrade the device"
        )
        with log_context(run=task.run_id, task=task.task_id):
            log.error("task failed: %s", reason)
            await self._report_failure(task.task_id, reason, FailureCause.UNREADABLE)
        self._metrics.tasks.labels("unknown", "failed").inc()

    async def _leave(self) -> None:
        try:
            await self._coordinator.leave()
        except HfmdsError as error:  # the coordinator will notice later
            log.debug("the coordinator did not hear that the device rests: %s", error)

    async def _report_failure(self, task_id: str, reason: str, cause: FailureCause) -> None:
        try:
            await self._to_coordinator(self._coordinator.report_failure, task_id, reason, cause)
        except HfmdsError as error:  # the task is over anyway
            log.info("the coordinator did not take the failure: %s", error)
