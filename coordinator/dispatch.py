"""Hands work to devices and takes results back: the domain behind CoordinatorService."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial

from coordinator.bell import Bell
from coordinator.content import RunContents
from coordinator.metrics import Metrics
from coordinator.registry import Registry
from coordinator.run_records import RunRecords
from coordinator.task_records import Task, TaskRecords, TaskState
from hfmds.algorithm.seeds import task_seed
from hfmds.digest import Digest
from hfmds.errors import LimitExceeded, NotAllowed, WrongState
from hfmds.service.telemetry import log_context
from hfmds.wire.chunks import outgoing, receive, upload_state
from hfmds.wire.records import encode_report
from hfmds.wire.tensors import StoredWeights
from hfmds.wire.types import (
    Assignment,
    DeviceProfile,
    Finished,
    RetryLater,
    SynthesiseWork,
    SynthesisReport,
    TrainWork,
    UpdateReport,
    UploadState,
)

log = logging.getLogger(__name__)

_MAX_WAIT_SECONDS = 60.0
# safetensors' header may be laid out otherwise than ours, but not by more than this.
_HEADER_SLACK_BYTES = 1 << 20


class Dispatch:
    """What the coordinator does for devices. Runs on the event loop, storage in threads."""

    def __init__(
        self,
        runs: RunRecords,
        tasks: TaskRecords,
        registry: Registry,
        contents: RunContents,
        metrics: Metrics,
        clock: Callable[[], float],
        retry_seconds: float,
    ) -> None:
        self._runs = runs
        self._tasks = tasks
        self._registry = registry
        self._contents = contents
        self._metrics = metrics
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._bells: defaultdict[str, Bell] = defaultdict(Bell)  # by waiting device
        self._bells_lock = threading.Lock()
        self._on_result: Callable[[str], None] = lambda run_id: None
        self._closing = False

    def on_result(self, callback: Callable[[str], None]) -> None:
        """Call back with the run's id whenever one of its tasks comes to an end."""
        self._on_result = callback

    def announce(self, devices: Iterable[str]) -> None:
        """Wake these devices' check-ins: there may be work for them. May be called anywhere."""
        with self._bells_lock:
            bells = [self._bells[device_id] for device_id in devices if device_id in self._bells]
        for bell in bells:
            bell.ring()

    def announce_all(self) -> None:
        """Wake every waiting check-in."""
        with self._bells_lock:
            devices = list(self._bells)
        self.announce(devices)

    def close(self) -> None:
        """Send waiting devices away, so that the server can stop at once."""
        self._closing = True
        self.announce_all()

    # --- asking for work ------------------------------------------------------------------------

    async def check_in(
        self, device_id: str, profile: DeviceProfile, wait_seconds: float, run_id: str
    ) -> Assignment | RetryLater | Finished:
        """Wait for work for the device, within limits."""
        visit = await asyncio.to_thread(self._registry.arrived, device_id, profile)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + min(max(wait_seconds, 0.0), _MAX_WAIT_SECONDS)
        with self._bells_lock:
            bell = self._bells[device_id]
        try:
            while True:
                rings = bell.rings
                outcome = await asyncio.to_thread(self._outcome_now, device_id, run_id)
                remaining = give_up_at - loop.time()
                if outcome is not None or remaining <= 0 or self._closing:
                    break
                await bell.wait_async(rings, remaining)
        except asyncio.CancelledError:
            # The connection broke while the device waited: it is not there any more.
            self._registry.left(device_id, visit)
            raise
        self._registry.heard(device_id)
        if outcome is None:
            if self._closing:
                return RetryLater(self._retry_seconds, "the coordinator is stopping")
            # A device that waited may ask again at once: its next call waits, too.
            waited = wait_seconds >= self._retry_seconds
            return RetryLater(0.0 if waited else self._retry_seconds, "no work for this device")
        return outcome

    def _outcome_now(self, device_id: str, run_id: str) -> Assignment | Finished | None:
        if self._closing:
            return None
        task = self._tasks.lease(device_id, run_id, self._clock())
        if task is not None:
            return self._assignment(task)
        if run_id:
            run = self._runs.get(run_id)
            if run.state.ended:
                return Finished(f"run {run_id!r} is {run.state.value}")
        return None

    def _assignment(self, task: Task) -> Assignment:
        key = task.key
        recipe = self._runs.get(key.run_id).spec.recipe
        return Assignment(
            task_id=task.task_id,
            run_id=key.run_id,
            round_number=key.round_number,
            lease_seconds=task.lease_seconds,
            recipe=recipe,
            seed=task_seed(recipe.seed, key.kind, key.round_number, task.device_id),
            weights=task.weights,
            work=TrainWork(task.reference or None)
            if key.kind == "train"
            else SynthesiseWork(task.reference),
        )

    async def renew_lease(self, device_id: str, task_id: str) -> float:
        """Keep a task; returns the lease's seconds."""
        self._registry.heard(device_id)
        return await asyncio.to_thread(self._tasks.renew, device_id, task_id, self._clock())

    # --- moving content -------------------------------------------------------------------------

    async def download(
        self, device_id: str, task_id: str, digest: Digest, offset: int
    ) -> AsyncIterator[bytes]:
        """The content a task refers to, from an offset on."""
        task = await asyncio.to_thread(self._tasks.get, device_id, task_id)
        if digest != task.weights:
            raise NotAllowed(f"task {task_id!r} does not refer to content {digest}")
        async for chunk in outgoing(self._contents.of(task.key.run_id).blobs, digest, offset):
            yield chunk

    async def query_upload(self, device_id: str, task_id: str, update: Digest) -> UploadState:
        """Where the upload of a task's update stands."""
        task = await self._uploading(device_id, task_id, update)
        content = self._contents.of(task.key.run_id)
        return await asyncio.to_thread(upload_state, content, task_id, update)

    async def receive_update(
        self,
        device_id: str,
        task_id: str,
        update: Digest,
        offset: int,
        chunks: AsyncIterator[bytes],
    ) -> None:
        """Take the bytes of a task's update."""
        task = await self._uploading(device_id, task_id, update)
        await receive(self._contents.of(task.key.run_id), task_id, update, offset, chunks)
        self._registry.heard(device_id)

    async def _uploading(self, device_id: str, task_id: str, update: Digest) -> Task:
        task = await asyncio.to_thread(self._tasks.get_pending, device_id, task_id)
        largest = task.weights.size_bytes + _HEADER_SLACK_BYTES
        if update.size_bytes > largest:
            raise LimitExceeded(
                f"an update of {update.size_bytes} bytes for task {task_id!r}: its model has "
                f"{task.weights.size_bytes}, so {largest} is the most"
            )
        return task

    # --- taking results -------------------------------------------------------------------------

    async def submit_update(self, device_id: str, task_id: str, report: UpdateReport) -> bool:
        """Count an uploaded update; true if it was counted before."""
        task = await asyncio.to_thread(self._tasks.get_pending, device_id, task_id)
        if task.state is not TaskState.ACCEPTED:  # of a counted update the bytes may be gone
            await asyncio.to_thread(self._check_update, task, report.update)
        return await self._accept(task, report.update, report)

    async def submit_synthesis(self, device_id: str, task_id: str, report: SynthesisReport) -> bool:
        """Count a batch that is at the store; true if it was counted before."""
        task = await asyncio.to_thread(self._tasks.get_pending, device_id, task_id)
        return await self._accept(task, report.batch, report)

    async def report_failure(self, device_id: str, task_id: str, reason: str) -> None:
        """Let a device give its task up."""
        task = await asyncio.to_thread(self._tasks.get, device_id, task_id)
        await asyncio.to_thread(self._tasks.fail, device_id, task_id, reason)
        with _task_context(task):
            log.warning("device gave its task up: %s", reason)
        self._metrics.task_ended(task.key.kind, "failed")
        self._on_result(task.key.run_id)

    def _check_update(self, task: Task, update: Digest) -> None:
        blobs = self._contents.of(task.key.run_id).blobs
        if not blobs.contains(update):
            raise WrongState(f"update {update} is not uploaded; upload it, then submit again")
        received = StoredWeights(blobs.local_path(update), f"update {update}")
        model = StoredWeights(blobs.local_path(task.weights), f"model {task.weights}")
        received.require_like(model, f"update {update} of device {task.device_id!r}")

    async def _accept(
        self, task: Task, result: Digest, report: UpdateReport | SynthesisReport
    ) -> bool:
        if (task.key.kind == "train") != isinstance(report, UpdateReport):
            raise WrongState(f"task {task.task_id!r} is to {task.key.kind}")
        accept = partial(
            self._tasks.accept, task.device_id, task.task_id, result, encode_report(report)
        )
        already = await asyncio.to_thread(accept)
        self._registry.heard(task.device_id)
        if not already:
            with _task_context(task):
                log.info("result accepted", extra={"result": str(result)})
            self._metrics.task_ended(task.key.kind, "accepted")
            self._metrics.moved(report.traffic)
            self._on_result(task.key.run_id)
        return already


def _task_context(task: Task) -> AbstractContextManager[None]:
    return log_context(
        run=task.key.run_id,
        round=task.key.round_number,
        device=task.device_id,
        task=task.task_id,
    )
