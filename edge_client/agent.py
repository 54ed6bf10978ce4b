"""The life of a device: ask for work, do it while the lease is renewed, ask again.

The agent runs until the coordinator has no more work, or until it is cancelled. The device gets an
unfinished task again at the next check-in, so it can stop at any moment. It also stops when its
owner's conditions do not hold. All waiting uses the monotonic clock: a wrong wall clock does no
harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from edge_client.device.device_folder import Report
from edge_client.metrics import EdgeMetrics
from edge_client.peers import Peers
from edge_client.retry import bounded_pause
from edge_client.tasks.task_runner import TaskRunner
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.tasks import (
    Assignment,
    EvaluateWork,
    EvaluationReport,
    FailureCause,
    Finished,
    LateReason,
    RetryLater,
    SynthesiseWork,
    TaskStage,
    TrainWork,
    UnreadableTask,
    UpdateReport,
)
from hfmds.errors import (
    ConfigurationError,
    Conflict,
    CorruptData,
    Diverged,
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.service.client.channel import Backoff
from hfmds.service.monitoring.logs import log_context
from hfmds.service.monitoring.tracing import note, span

log = logging.getLogger(__name__)

_KINDS = {TrainWork: "train", SynthesiseWork: "synthesise", EvaluateWork: "evaluate"}
_FIRST_WAIT_SECONDS = 5.0  # until the first answer, /readyz shows the coordinator as away


class _MustRest(Exception):
    """The device may not work now; the message says why."""


class Agent:
    """Runs one device."""

    def __init__(
        self,
        profile: Callable[[], DeviceProfile],
        peers: Peers,
        runner: TaskRunner,
        metrics: EdgeMetrics,
        *,
        run_id: str = "",
        wait_seconds: float = 30.0,
        once: bool = False,
        backoff: Backoff = Backoff(),  # noqa: B008 (frozen)
        refusal: Callable[[bool], str | None] = lambda working: None,
        look_every_seconds: float = 15.0,
        tell_stage_after_seconds: float = 1.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`profile` describes the device now, and `refusal` says why it may not work now.

        The argument of `refusal` says whether a task is being done. Both run in a thread. With
        `once` the device stops when there is no work. `backoff` paces a device whose tasks fail.
        The device reports a stage only after it lasted for `tell_stage_after_seconds`.
        """
        self._profile = profile
        self._software_version = ""  # of the last profile
        self._coordinator = peers.coordinator
        self._to_coordinator = peers.coordinator_retry.call
        self._trouble = peers.coordinator_retry.trouble
        self._runner = runner
        self._metrics = metrics
        self._run_id = run_id
        self._wait_seconds = wait_seconds
        self._once = once
        self._backoff = backoff
        self._refusal = refusal
        self._look_every_seconds = look_every_seconds
        self._tell_stage_after_seconds = tell_stage_after_seconds
        self._sleep = sleep

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
                        await self._sleep(self._backoff.ceiling(failures))
                case UnreadableTask() as task:
                    failures += 1
                    failed += 1
                    await self._refuse(task)
                    await self._sleep(self._backoff.ceiling(failures))
                case RetryLater(after_seconds, reason):
                    if reason != idle_reason:
                        log.info("waiting for work: %s", reason)
                        idle_reason = reason
                    if self._once:
                        return failed
                    await self._sleep(bounded_pause(after_seconds))
                case Finished(reason):
                    log.info("no more work: %s", reason)
                    return failed

    async def _may_work(self) -> bool:
        """Wait until the device may work; return False if it is to stop instead."""
        shown_reason = ""
        while reason := await asyncio.to_thread(self._refusal, False):
            if not shown_reason:  # once, because the reason has a time that changes
                log.info("resting: %s", reason)
                shown_reason = reason
            if self._once:
                return False
            await self._sleep(self._look_every_seconds)
        if shown_reason:
            log.info("going on: the device may work again")
        return True

    async def _next_task(self) -> Assignment | UnreadableTask | RetryLater | Finished:
        # A device that works once must report that the coordinator does not answer.
        return await (self._check_in() if self._once else self._to_coordinator(self._check_in))

    async def _check_in(self) -> Assignment | UnreadableTask | RetryLater | Finished:
        profile = await asyncio.to_thread(self._profile)
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
                stages: asyncio.Queue[TaskStage] = asyncio.Queue()
                work = self._runner.run(task, stages.put_nowait)
                report = await self._while_leased(task, work, stages)
            except _MustRest as rest:
                log.info("the task is left for now: %s", rest)
                await self._leave()
                outcome = "left"
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
                await self._report_failure(task.task_id, error.public, _cause(error))
                outcome = "failed"
            except Exception as error:
                log.exception("task failed")
                # The text of an unexpected error may quote real data, so it stays here.
                reason = f"unexpected {type(error).__name__}; the device's log has more"
                await self._report_failure(task.task_id, reason, FailureCause.UNEXPECTED)
                outcome = "failed"
            else:
                log.info("%s", _summary(task, report))
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

    async def _while_leased(
        self,
        task: Assignment,
        work: Coroutine[Any, Any, Report],
        stages: asyncio.Queue[TaskStage],
    ) -> Report:
        """Return the result of `work`; if the lease ends first, cancel it and raise why."""
        working = asyncio.create_task(work)
        renewing = asyncio.create_task(self._keep_renewing(task))
        telling = asyncio.create_task(self._keep_telling(task, stages))
        looking = asyncio.create_task(self._keep_looking())
        tasks = (working, renewing, telling, looking)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if working in done:
                return working.result()
            return await done.pop()
        finally:
            for running in tasks:
                running.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_renewing(self, task: Assignment) -> NoReturn:
        """Renew the lease at every third of it, so that two calls may be lost; ends by an error."""
        lease_seconds = task.lease_seconds
        while True:
            await self._sleep(bounded_pause(lease_seconds / 3))
            # While the coordinator is away, the work goes on: it may be back in time.
            lease_seconds = await self._renew(task)

    async def _keep_telling(self, task: Assignment, stages: asyncio.Queue[TaskStage]) -> NoReturn:
        """Report each stage that lasts, with a renewal of the lease; ends by an error."""
        while True:
            stage = await stages.get()
            await asyncio.sleep(self._tell_stage_after_seconds)
            while not stages.empty():
                stage = stages.get_nowait()
            await self._renew(task, stage)

    async def _renew(self, task: Assignment, stage: TaskStage | None = None) -> float:
        try:
            renew = self._coordinator.renew_lease
            return await self._to_coordinator(renew, task.task_id, stage)
        except TooLate as error:
            if error.reason != LateReason.ACCEPTED.value:
                raise
            # The result counts already: the answer to its submission is on the way.
            return task.lease_seconds

    async def _keep_looking(self) -> NoReturn:
        """Check whether the device may still work; ends by _MustRest."""
        while True:
            await asyncio.sleep(self._look_every_seconds)
            if reason := await asyncio.to_thread(self._refusal, True):
                raise _MustRest(reason)

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


def _cause(error: HfmdsError) -> FailureCause:
    """Return the kind of failure that an error is."""
    match error:
        case Diverged():
            return FailureCause.DIVERGED
        case CorruptData() | NotFound():
            return FailureCause.TRANSFER
        case InvalidInput() | ConfigurationError() | LimitExceeded():
            return FailureCause.UNSUITABLE
        case NotAllowed():
            return FailureCause.REFUSED
        case _:
            return FailureCause.UNEXPECTED


def _summary(task: Assignment, report: Report) -> str:
    """Return the log line about a finished task."""
    moved = (
        f"received {report.traffic.received_bytes / 1e6:.1f} MB, "
        f"sent {report.traffic.sent_bytes / 1e6:.1f} MB"
    )
    if isinstance(report, UpdateReport):
        return (
            f"round {task.round_number}: update accepted; loss {report.loss:.3f}, "
            f"trained {report.training_seconds:.1f} s, {moved}"
        )
    if isinstance(report, EvaluationReport):
        evaluation = report.evaluation
        return (
            f"round {task.round_number}: evaluation accepted; {evaluation.accuracy:.1%} of "
            f"{evaluation.samples} own images, took {report.evaluation_seconds:.1f} s, {moved}"
        )
    accuracy = report.synthetic_accuracy
    recognised = "" if accuracy is None else f"recognised {accuracy:.0%}, "
    return (
        f"round {task.round_number}: {report.samples} synthetic images accepted; "
        f"{recognised}PSNR to the real ones "
        f"{report.leakage.paired_mean:.1f} dB (max {report.leakage.paired_max:.1f}), "
        f"synthesised {report.synthesis_seconds:.1f} s, {moved}"
    )
