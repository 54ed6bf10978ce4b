"""Hands work to devices and takes results back: the domain behind CoordinatorService."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from coordinator.devices.batching import Together
from coordinator.devices.lru import Memory
from coordinator.devices.plans import Plans
from coordinator.devices.registry import Registry
from coordinator.devices.results import Report, Results, Submitted
from coordinator.devices.uploads import Updates
from coordinator.devices.wakeup import Bell, ring_all
from coordinator.monitoring import round_tracing
from coordinator.monitoring.log_fields import task_context
from coordinator.monitoring.metrics import Metrics
from coordinator.records.acceptance import Acceptance
from coordinator.records.device_tasks import TaskRecords
from coordinator.records.drain import DrainRecords
from coordinator.records.funnel import StageNotes
from coordinator.records.runs import RunRecords
from coordinator.records.tasks import Task
from coordinator.runs.content import RunContents
from coordinator.runs.recipes import Recipes
from hfmds.algorithm.seeds import task_seed
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import Traffic
from hfmds.domain.methods import TaskKind
from hfmds.domain.recipe import Recipe
from hfmds.domain.runs import RunState
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
    UpdateReport,
    UploadState,
)
from hfmds.errors import NotAllowed, TooLate
from hfmds.plans.format import plan_spec
from hfmds.service.limits.retry_schedule import Pace
from hfmds.service.monitoring import tracing
from hfmds.storage.blobs import CHUNK_BYTES, Blobs, require_offset
from hfmds.wire.chunks import (
    download_message,
    outgoing,
)
from hfmds.wire.conversions.records import encode_report

log = logging.getLogger(__name__)

_MAX_WAIT_SECONDS = 60.0
_REMEMBERED_TASKS = 4096
_REMEMBERED_CONTENTS = 4
_REMEMBERED_CONTENT_BYTES = 16 * CHUNK_BYTES  # what is larger is read as it is sent
_MAX_LOOKING = 200  # check-ins that look for work at once
_NO_WORK = "no work for this device"
_DRAINED = "the coordinator is drained: it hands out no new work"


_Outcome: TypeAlias = Assignment | Finished | str | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A device's question for work."""

    device_id: str
    profile: DeviceProfile
    run_id: str


class Dispatch:
    """What the coordinator does for devices. Runs on the event loop, storage in threads."""

    def __init__(
        self,
        runs: RunRecords,
        tasks: TaskRecords,
        registry: Registry,
        contents: RunContents,
        metrics: Metrics,
        drain: DrainRecords,
        stages: StageNotes,
        clock: Callable[[], float],
        pace: Pace,
        max_waiting: int = 1000,
        plans: Plans | None = None,
    ) -> None:
        """`max_waiting` check-ins may wait for work at once; others come back later."""
        self._runs = runs
        self._tasks = tasks
        self._registry = registry
        self._contents = contents
        self._metrics = metrics
        self._drain = drain
        self._stages = stages
        self._clock = clock
        self._pace = pace
        self._max_waiting = max_waiting
        self._plans = plans
        self._asked = Together[_Asked, _Outcome](self._outcomes_now, _MAX_LOOKING)
        self._looking = 0  # check-ins that look for work right now
        self.waiting = 0  # those that have found none, and wait for it
        self._waiting: defaultdict[str, set[Bell]] = defaultdict(set)  # check-ins by device
        self._waiting_lock = threading.Lock()
        self._on_result: Callable[[str], None] = lambda run_id: None
        self._closing = False
        self._handed_out = Memory[Task](_REMEMBERED_TASKS)  # as they were then, by device and id
        self._recipes = Recipes(runs)
        self._updates = Updates(tasks, self._recipes, contents, metrics, clock)
        self._results = Results(
            tasks, self._updates, contents, self._handed_out, clock, self._accepted
        )
        # A whole cohort downloads the same at about the same time.
        self._whole = Memory[tuple[bytes, ...]](_REMEMBERED_CONTENTS)  # by run and digest
        self._one_reads = threading.Lock()

    def on_result(self, callback: Callable[[str], None]) -> None:
        """Call back with the run's id whenever its round has to see to a task that has ended."""
        self._on_result = callback

    def announce(self, devices: Iterable[str]) -> None:
        """Wake these devices' check-ins: there may be work for them. May be called anywhere."""
        with self._waiting_lock:
            bells = [bell for device in devices for bell in self._waiting.get(device, ())]
        ring_all(bells)

    def announce_to(self, devices: tuple[str, ...]) -> None:
        """Wake these devices' check-ins, or, if none is named, every one."""
        if devices:
            self.announce(devices)
        else:
            self.announce_all()

    def announce_all(self) -> None:
        """Wake every waiting check-in."""
        with self._waiting_lock:
            devices = list(self._waiting)
        self.announce(devices)

    def close(self) -> None:
        """Send waiting devices away, so that the server can stop at once."""
        self._closing = True
        self._stages.close()
        if self._plans:
            self._plans.close()
        self.announce_all()

    # --- asking for work ------------------------------------------------------------------------

    async def check_in(
        self,
        device_id: str,
        profile: DeviceProfile,
        wait_seconds: float,
        run_id: str,
        process: str = "",
    ) -> Assignment | RetryLater | Finished:
        """Wait for work for the device, within limits."""
        visit = self._registry.visit(device_id, profile, run_id, process)
        if self._looking >= _MAX_LOOKING:  # more come at once than could be answered in time
            with visit:
                return self._retry_later(device_id, "many devices are asking for work")
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + min(max(wait_seconds, 0.0), _MAX_WAIT_SECONDS)
        with visit, self._bell_for(device_id) as bell:
            while not self._closing:
                rings = bell.rings
                outcome = await self._look(device_id, profile, run_id)
                if isinstance(outcome, str):
                    return self._retry_later(device_id, outcome)
                if outcome is not None:
                    return outcome
                remaining = give_up_at - loop.time()
                if remaining <= 0 and wait_seconds >= self._pace.least_seconds:
                    # It waited, and may ask again at once: its next call waits, too.
                    return RetryLater(0.0, _NO_WORK)
                if remaining <= 0 or self.waiting >= self._max_waiting:
                    return self._retry_later(device_id, _NO_WORK)
                self.waiting += 1
                try:
                    await bell.wait_async(rings, remaining)
                finally:
                    self.waiting -= 1
            return self._retry_later(device_id, "the coordinator is stopping")

    async def _look(self, device_id: str, profile: DeviceProfile, run_id: str) -> _Outcome:
        self._looking += 1
        try:
            return await self._asked.ask(_Asked(device_id, profile, run_id))
        finally:
            self._looking -= 1

    def _retry_later(self, device_id: str, reason: str) -> RetryLater:
        after_seconds = self._pace.retry_seconds(device_id, self._clock())
        self._registry.expect(device_id, after_seconds)
        return RetryLater(after_seconds, reason)

    @contextmanager
    def _bell_for(self, device_id: str) -> Iterator[Bell]:
        bell = Bell()
        with self._waiting_lock:
            self._waiting[device_id].add(bell)
        try:
            yield bell
        finally:
            with self._waiting_lock:
                self._waiting[device_id].discard(bell)
                if not self._waiting[device_id]:
                    del self._waiting[device_id]

    def _outcomes_now(self, asked: Sequence[_Asked]) -> list[_Outcome | Exception]:
        """For each: work, or its end; a reason to come back later; None: worth waiting for."""
        tasks = self._tasks.lease_each([(a.device_id, a.run_id) for a in asked], self._clock())
        state_of = cache(self._runs.state)
        outcomes: list[_Outcome | Exception] = []
        for each, task in zip(asked, tasks, strict=True):
            try:
                outcomes.append(self._outcome_now(each, task, state_of))
            except Exception as error:  # noqa: BLE001  # it is this device's alone
                outcomes.append(error)
        answered = zip(asked, outcomes, strict=True)
        self._registry.remember(
            {each.device_id: each.profile for each, o in answered if not isinstance(o, Exception)}
        )
        return outcomes

    def _outcome_now(
        self, asked: _Asked, task: Task | None, state_of: Callable[[str], RunState]
    ) -> _Outcome:
        if task is not None:
            self._metrics.funnel.taken(task.key.kind, task.task_id)
            self._handed_out.put((task.device_id, task.task_id), task)
            return self._assignment(task, asked.profile)
        if asked.run_id and (state := state_of(asked.run_id)).ended:  # it must exist
            return Finished(f"run {asked.run_id!r} is {state.value}")
        return _DRAINED if self._drain.is_on() else None

    def plan_ready(
        self, recipe: Recipe, profiles: Iterable[DeviceProfile], when_ready: Callable[[], None]
    ) -> bool:
        """Whether none of these devices has to wait for a plan; if not, that is told later."""
        plans = self._plans
        if plans is None or not any(plans.needed(profile.engine) for profile in profiles):
            return True
        return plans.ready(plan_spec(recipe), when_ready)

    def _assignment(self, task: Task, profile: DeviceProfile) -> Assignment | None:
        """The task as its device gets it; None: not before the plan is made that it needs."""
        key, recipe = task.key, self._recipes.of(task.key.run_id, task.run_uid)
        if not self.plan_ready(recipe, [profile], lambda: self.announce([task.device_id])):
            return None
        plans = self._plans
        return Assignment(
            task_id=task.task_id,
            run_id=key.run_id,
            run_uid=task.run_uid,
            round_number=key.round_number,
            lease_seconds=task.lease_seconds,
            # A device that knows of no later learning rate would train at the first one for ever.
            recipe=recipe.in_round(key.round_number),
            seed=task_seed(recipe.seed, key.kind, key.round_number, task.device_id),
            weights=task.weights,
            work=_work(task),
            plan=plans.of(plan_spec(recipe)) if plans and plans.needed(profile.engine) else None,
            traceparent=round_tracing.assign(task),
        )

    async def renew_lease(
        self, device_id: str, task_id: str, stage: TaskStage | None = None
    ) -> float:
        """Keep a task, and note how far its device is; returns the lease's seconds."""
        renew = self._tasks.renew if stage is None else self._tasks.renew_if_worth_it
        with self._counting_late():
            seconds = await asyncio.to_thread(renew, device_id, task_id, self._clock())
        if stage is not None:
            self._stages.note(task_id, stage)
        self._registry.heard(device_id)
        return seconds

    # --- moving content -------------------------------------------------------------------------

    async def download(
        self, device_id: str, task_id: str, digest: Digest, offset: int
    ) -> AsyncIterator[bytes]:
        """The content a task refers to, from an offset on, as serialised DownloadBlobResponses."""
        found = self._in_memory(device_id, task_id, digest, offset)
        if found is None:
            found = await asyncio.to_thread(self._downloading, device_id, task_id, digest, offset)
        task, source = found
        if isinstance(source, tuple):
            for message in source:
                yield message
        else:
            async for chunk in outgoing(source, digest, offset):
                yield download_message(chunk)
        if digest != task.weights:  # but its plan
            return
        if task.key.kind != "train" or not task.reference:  # else the pool is still to come
            self._stages.note(task_id, TaskStage.DOWNLOADED)

    def _downloading(
        self, device_id: str, task_id: str, digest: Digest, offset: int
    ) -> tuple[Task, Blobs | tuple[bytes, ...]]:
        """The task, and where the content is, or all of it if it is worth remembering."""
        task = self._tasks.get(device_id, task_id)
        if digest == task.weights:
            blobs = self._contents.of(task.key.run_id).blobs
        elif self._plans and self._plans.contains(digest):  # no secret, whichever model it is of
            blobs = self._plans.blobs
        else:
            raise NotAllowed(f"task {task_id!r} does not refer to content {digest}")
        require_offset(digest, offset)
        if offset or digest.size_bytes > _REMEMBERED_CONTENT_BYTES:
            return task, blobs
        with self._one_reads:  # for the others of its cohort
            whole = self._at_hand(task, digest)
            if whole is None:
                whole = tuple(map(download_message, blobs.read(digest)))
                self._whole.put((task.run_uid, digest), whole)
        return task, whole

    def _in_memory(
        self, device_id: str, task_id: str, digest: Digest, offset: int
    ) -> tuple[Task, Blobs | tuple[bytes, ...]] | None:
        """As `_downloading`, of a task's model that needs no trip to a thread; None: it does."""
        task = self._handed_out.get((device_id, task_id))
        if task is None or digest != task.weights or offset:
            return None
        whole = self._at_hand(task, digest)
        return (task, whole) if whole else None

    def _at_hand(self, task: Task, digest: Digest) -> tuple[bytes, ...] | None:
        """Content of the task that is in memory; it was asked for before."""
        return self._whole.get((task.run_uid, digest))

    async def query_upload(self, device_id: str, task_id: str, update: Digest) -> UploadState:
        """Where the upload of a task's update stands."""

        def look() -> UploadState:
            return self._updates.state(self._answerable(device_id, task_id), update)

        return await asyncio.to_thread(look)

    async def receive_update(
        self,
        device_id: str,
        task_id: str,
        update: Digest,
        offset: int,
        chunks: AsyncIterator[bytes | memoryview],
    ) -> bool:
        """Take the bytes of a task's update; true if they were here before."""

        def wanted() -> Task:
            return self._answerable(device_id, task_id)

        present = await self._updates.take(wanted, task_id, update, offset, chunks)
        self._stages.note(task_id, TaskStage.UPLOADED)
        self._registry.heard(device_id)
        return present

    # --- taking results -------------------------------------------------------------------------

    async def submit_update(self, device_id: str, task_id: str, report: UpdateReport) -> bool:
        """Count an uploaded update; true if it was counted before."""
        return await self._submit(device_id, task_id, "train", report.update, report)

    async def submit_synthesis(self, device_id: str, task_id: str, report: SynthesisReport) -> bool:
        """Count a batch that is at the store; true if it was counted before."""
        return await self._submit(device_id, task_id, "synthesise", report.batch, report)

    async def submit_evaluation(
        self, device_id: str, task_id: str, report: EvaluationReport
    ) -> bool:
        """Count what a device has measured; true if it was counted before."""
        measured = EvaluationReport(report.evaluation, Traffic(), 0.0)
        result = digest_of(encode_report(measured))
        return await self._submit(device_id, task_id, "evaluate", result, report)

    async def _submit(
        self,
        device_id: str,
        task_id: str,
        kind: TaskKind,
        result: Digest,
        report: Report,
    ) -> bool:
        with self._counting_late():
            accepted = await self._results.accept(
                Submitted(device_id, task_id, kind, result, report)
            )
        self._registry.heard(device_id)
        if not accepted.already:
            tracing.note("accepted")
        return accepted.already

    def _accepted(self, task: Task, submitted: Submitted, acceptance: Acceptance) -> None:
        """A result is counted."""
        self._stages.accepted(submitted.task_id)
        if not acceptance.already:
            with task_context(task):
                log.info("result accepted", extra={"result": str(submitted.result)})
            self._metrics.funnel.accepted(submitted.kind, submitted.task_id)
            self._metrics.fleet.count(submitted.report)
            self._metrics.moved(submitted.report.traffic)
        if acceptance.moves_round:
            self._on_result(task.key.run_id)

    async def report_failure(
        self,
        device_id: str,
        task_id: str,
        reason: str,
        cause: FailureCause = FailureCause.UNEXPECTED,
    ) -> None:
        """Let a device give its task up."""
        task = await asyncio.to_thread(self._tasks.get, device_id, task_id)
        now = self._clock()
        failed = await asyncio.to_thread(self._tasks.fail, device_id, task_id, reason, cause, now)
        self._registry.heard(device_id)
        if failed is not None:
            with task_context(task):
                log.warning("device gave its task up: %s", reason)
            self._metrics.funnel.failed(task.key.kind, task_id, failed)
            self._on_result(task.key.run_id)

    async def leave(self, device_id: str) -> None:
        """Let a device stop: nobody waits for it, and its task waits for its return."""
        runs = await asyncio.to_thread(self._tasks.expire_leases, device_id)
        self._registry.left(device_id)
        for run_id in runs:
            self._on_result(run_id)

    def _answerable(self, device_id: str, task_id: str) -> Task:
        """The device's task to train, if its update is wanted or known."""
        with self._counting_late():
            return self._results.answerable(device_id, task_id, "train")

    @contextmanager
    def _counting_late(self) -> Iterator[None]:
        try:
            yield
        except TooLate as error:
            self._metrics.late(error.reason)
            raise


def _work(task: Task) -> TrainWork | SynthesiseWork | EvaluateWork:
    match task.key.kind:
        case "train":
            return TrainWork(task.reference or None)
        case "synthesise":
            return SynthesiseWork(task.reference)
        case "evaluate":
            return EvaluateWork()
