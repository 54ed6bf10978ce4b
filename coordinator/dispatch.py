"""Hands work to devices and takes results back: the domain behind CoordinatorService."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from coordinator.bell import Bell
from coordinator.content import RunContents
from coordinator.metrics import Metrics
from coordinator.registry import Registry
from coordinator.run_records import RunRecords
from coordinator.task_records import Task, TaskRecords, TaskState
from hfmds.algorithm.seeds import Phase as Kind
from hfmds.algorithm.seeds import task_seed
from hfmds.digest import Digest
from hfmds.errors import LimitExceeded, NotAllowed, WrongState
from hfmds.service.telemetry import log_context
from hfmds.wire.chunks import Content, outgoing, receive, upload_state
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
_FLOAT32_BYTES = 4
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
        self._waiting: defaultdict[str, set[Bell]] = defaultdict(set)  # check-ins by device
        self._waiting_lock = threading.Lock()
        self._on_result: Callable[[str], None] = lambda run_id: None
        self._closing = False

    def on_result(self, callback: Callable[[str], None]) -> None:
        """Call back with the run's id whenever one of its tasks comes to an end."""
        self._on_result = callback

    def announce(self, devices: Iterable[str]) -> None:
        """Wake these devices' check-ins: there may be work for them. May be called anywhere."""
        with self._waiting_lock:
            bells = [bell for device in devices for bell in self._waiting.get(device, ())]
        for bell in bells:
            bell.ring()

    def announce_all(self) -> None:
        """Wake every waiting check-in."""
        with self._waiting_lock:
            devices = list(self._waiting)
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
        if run_id:
            await asyncio.to_thread(self._runs.state, run_id)  # it must exist
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + min(max(wait_seconds, 0.0), _MAX_WAIT_SECONDS)
        with self._registry.visit(device_id, run_id), self._bell_for(device_id) as bell:
            await asyncio.to_thread(self._registry.remember, device_id, profile)
            while not self._closing:
                rings = bell.rings
                outcome = await asyncio.to_thread(self._outcome_now, device_id, run_id)
                if outcome is not None:
                    return outcome
                remaining = give_up_at - loop.time()
                if remaining <= 0:
                    # A device that waited may ask again at once: its next call waits, too.
                    waited = wait_seconds >= self._retry_seconds
                    after_seconds = 0.0 if waited else self._retry_seconds
                    return RetryLater(after_seconds, "no work for this device")
                await bell.wait_async(rings, remaining)
        return RetryLater(self._retry_seconds, "the coordinator is stopping")

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

    def _outcome_now(self, device_id: str, run_id: str) -> Assignment | Finished | None:
        task = self._tasks.lease(device_id, run_id, self._clock())
        if task is not None:
            return self._assignment(task)
        if run_id:
            state = self._runs.state(run_id)
            if state.ended:
                return Finished(f"run {run_id!r} is {state.value}")
        return None

    def _assignment(self, task: Task) -> Assignment:
        key, run = task.key, self._runs.get(task.key.run_id)
        recipe = run.spec.recipe
        return Assignment(
            task_id=task.task_id,
            run_id=key.run_id,
            run_uid=run.run_uid,
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
        seconds = await asyncio.to_thread(self._tasks.renew, device_id, task_id, self._clock())
        self._registry.heard(device_id)
        return seconds

    # --- moving content -------------------------------------------------------------------------

    async def download(
        self, device_id: str, task_id: str, digest: Digest, offset: int
    ) -> AsyncIterator[bytes]:
        """The content a task refers to, from an offset on."""
        task = await asyncio.to_thread(self._tasks.get, device_id, task_id)
        if digest != task.weights:
            raise NotAllowed(f"task {task_id!r} does not refer to content {digest}")
        content = await self._content(task)
        async for chunk in outgoing(content.blobs, digest, offset):
            yield chunk

    async def query_upload(self, device_id: str, task_id: str, update: Digest) -> UploadState:
        """Where the upload of a task's update stands."""
        task = await self._uploading(device_id, task_id, update)
        return await asyncio.to_thread(upload_state, await self._content(task), task_id, update)

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
        await receive(await self._content(task), task_id, update, offset, chunks)
        self._registry.heard(device_id)

    async def _uploading(self, device_id: str, task_id: str, update: Digest) -> Task:
        task = await self._answerable(device_id, task_id, "train")
        shapes = await asyncio.to_thread(self._trained_shapes, task)
        size_bytes = sum(_FLOAT32_BYTES * math.prod(shape) for shape in shapes.values())
        largest = size_bytes + _HEADER_SLACK_BYTES
        if update.size_bytes > largest:
            raise LimitExceeded(
                f"an update of {update.size_bytes} bytes for task {task_id!r}: what it trains has "
                f"{size_bytes}, so {largest} is the most"
            )
        return task

    def _trained_shapes(self, task: Task) -> dict[str, tuple[int, ...]]:
        """The tensors that an update for this task has, and must have."""
        key, blobs = task.key, self._contents.of(task.key.run_id).blobs
        method = self._runs.get(key.run_id).spec.recipe.method
        model = StoredWeights(blobs.local_path(task.weights), f"model {task.weights}")
        shapes = model.shapes()
        return {name: shapes[name] for name in shapes if method.trains(name, key.round_number)}

    async def _content(self, task: Task) -> Content:
        return await asyncio.to_thread(self._contents.of, task.key.run_id)

    # --- taking results -------------------------------------------------------------------------

    async def submit_update(self, device_id: str, task_id: str, report: UpdateReport) -> bool:
        """Count an uploaded update; true if it was counted before."""
        task = await self._answerable(device_id, task_id, "train")
        if task.state is not TaskState.ACCEPTED:  # of a counted update the bytes may be gone
            await asyncio.to_thread(self._check_update, task, report.update)
        return await self._accept(task, report.update, report)

    async def submit_synthesis(self, device_id: str, task_id: str, report: SynthesisReport) -> bool:
        """Count a batch that is at the store; true if it was counted before."""
        task = await self._answerable(device_id, task_id, "synthesise")
        return await self._accept(task, report.batch, report)

    async def report_failure(self, device_id: str, task_id: str, reason: str) -> None:
        """Let a device give its task up."""
        task = await asyncio.to_thread(self._tasks.get, device_id, task_id)
        already = await asyncio.to_thread(self._tasks.fail, device_id, task_id, reason)
        self._registry.heard(device_id)
        if not already:
            with _task_context(task):
                log.warning("device gave its task up: %s", reason)
            self._metrics.task_ended(task.key.kind, "failed")
            self._on_result(task.key.run_id)

    async def leave(self, device_id: str) -> None:
        """Let a device stop: nobody waits for it, and its task waits for its return."""
        runs = await asyncio.to_thread(self._tasks.expire_leases, device_id)
        self._registry.left(device_id)
        for run_id in runs:
            self._on_result(run_id)

    async def _answerable(self, device_id: str, task_id: str, kind: Kind) -> Task:
        """The device's task, if it is of this kind and its answer is wanted or known."""
        task = await asyncio.to_thread(self._tasks.get_pending, device_id, task_id)
        if task.key.kind != kind:
            raise WrongState(f"task {task_id!r} is to {task.key.kind}, not to {kind}")
        return task

    def _check_update(self, task: Task, update: Digest) -> None:
        blobs = self._contents.of(task.key.run_id).blobs
        if not blobs.contains(update):
            raise WrongState(f"update {update} is not uploaded; upload it, then submit again")
        received = StoredWeights(blobs.local_path(update), f"update {update}")
        whose = f"update {update} of device {task.device_id!r}"
        received.require_like(self._trained_shapes(task), whose)
        self._runs.get(task.key.run_id).spec.recipe.method.check_update(received, whose)

    async def _accept(
        self, task: Task, result: Digest, report: UpdateReport | SynthesisReport
    ) -> bool:
        record = encode_report(report)
        already = await asyncio.to_thread(
            self._tasks.accept, task.device_id, task.task_id, result, record
        )
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
