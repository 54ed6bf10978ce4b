"""The fleet of real devices behind one run, as Algorithm 1 sees it (`hfmds.algorithm.federation`).

Lives in the run's driver thread, where blocking is fine. Every step is recorded before the next, so
after a restart the same calls find what was done and go on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from coordinator.bell import Bell
from coordinator.parts import Parts
from coordinator.task_records import PhaseKey, PhaseRecord, Task, TaskState
from hfmds.algorithm.types import Evaluation, Pool, Traffic, Update, Weights
from hfmds.digest import Digest
from hfmds.errors import Unavailable
from hfmds.wire.records import decode_synthesis_report, decode_update_report
from hfmds.wire.tensors import StoredWeights, encode_weights
from hfmds.wire.types import Phase, PoolSpec, Progress, RunSpec

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_LOOK_AGAIN_SECONDS = 1.0  # leases and deadlines run out without anyone ringing
_STORE_RETRY_SECONDS = 2.0
_SHOWN = {"train": Phase.TRAINING, "synthesise": Phase.SYNTHESISING}


class RunControl(Protocol):
    """How the run's driver steers the fleet between two looks at the devices."""

    bell: Bell

    def heed(self) -> bool:
        """Raise if the run is to stop; block while it is paused; true if it was paused."""

    def pause(self, reason: str) -> None:
        """Pause the run until an operator resumes it."""

    def show(self, progress: Progress) -> None:
        """Tell operators what is going on."""

    def on_loop(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Make an asynchronous call from this thread and wait for its result."""


class RemoteFleet:
    """A `Fleet` whose devices are behind the network."""

    def __init__(self, run_id: str, spec: RunSpec, control: RunControl, parts: Parts) -> None:
        self._run_id = run_id
        self._spec = spec
        self._control = control
        self._tasks = parts.tasks
        self._registry = parts.registry
        self._dispatch = parts.dispatch
        self._content = parts.contents.of(run_id)
        self._store = parts.store
        self._held_out = parts.held_out
        self._clock = parts.clock

    # --- Fleet ----------------------------------------------------------------------------------

    def available(self, round_number: int) -> Sequence[str]:
        """The devices that are there, once there are enough; on a replay, the recorded cohort."""
        recorded = self._tasks.find_phase(PhaseKey(self._run_id, round_number, "train"))
        if recorded:
            return [task.device_id for task in recorded.tasks]
        return self._enough_devices(round_number)

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        digest = self._content.blobs.put_bytes(encode_weights(weights))
        pool_id, spec = f"{self._run_id}-{round_number}", self._pool_spec(round_number, digest)
        self._with_store(lambda: self._store.open_pool(pool_id, spec))
        accepted = self._conduct(
            PhaseKey(self._run_id, round_number, "synthesise"),
            digest,
            pool_id,
            lambda: self._enough_devices(round_number),
        )
        reports = [decode_synthesis_report(task.report) for task in accepted]
        batches = [report.batch for report in reports]
        snapshot = self._with_store(lambda: self._store.seal_pool(pool_id, batches))
        traffic = sum((report.traffic for report in reports), Traffic())
        return Pool(snapshot.snapshot_id, snapshot.samples, snapshot.leakage, traffic)

    def train(
        self, round_number: int, weights: Weights, pool: Pool | None, cohort: Sequence[str]
    ) -> Iterator[Update]:
        accepted = self._conduct(
            PhaseKey(self._run_id, round_number, "train"),
            self._content.blobs.put_bytes(encode_weights(weights)),
            pool.snapshot_id if pool else "",
            lambda: cohort,
        )
        self._control.show(Progress(round_number, Phase.AGGREGATING, len(accepted), len(accepted)))
        return (self._update(task) for task in accepted)  # each loaded when it is reached

    def evaluate(self, weights: Weights) -> Evaluation | None:
        return self._held_out.evaluate(self._spec.recipe, weights)

    # --- one phase ------------------------------------------------------------------------------

    def _conduct(
        self,
        key: PhaseKey,
        weights: Digest,
        reference: str,
        choose_devices: Callable[[], Sequence[str]],
    ) -> tuple[Task, ...]:
        """Have devices do a phase's work until enough is in; the accepted tasks by device id."""
        phase = self._tasks.find_phase(key) or self._tasks.open_phase(
            key, weights, reference, choose_devices(), self._spec.policy, self._clock()
        )
        self._dispatch.announce(task.device_id for task in phase.tasks)
        while not phase.closed:
            rings = self._control.bell.rings
            phase = self._tasks.get_phase(key)
            accepted = len(phase.in_state(TaskState.ACCEPTED))
            self._control.show(
                Progress(key.round_number, _SHOWN[key.kind], accepted, len(phase.tasks))
            )
            if self._is_done(phase):
                phase = self._tasks.close_phase(key)
                break
            if self._is_stuck(phase):
                self._extend_or_pause(phase)
            self._control.bell.wait(rings, _LOOK_AGAIN_SECONDS)
            if self._control.heed():  # it was paused: the clock starts anew
                self._extend(phase, ())
        return phase.in_state(TaskState.ACCEPTED)

    def _is_done(self, phase: PhaseRecord) -> bool:
        """Enough results are in, and nobody is left whom it is worth waiting for."""
        if len(phase.in_state(TaskState.ACCEPTED)) < self._spec.policy.minimum_devices:
            return False
        now = self._clock()
        here = set(self._registry.available())
        hopeful = any(
            task.device_id in here
            if task.state is TaskState.ASSIGNED
            else task.lease_expires_at > now
            for task in phase.pending
        )
        return not hopeful or now >= phase.deadline_at

    def _is_stuck(self, phase: PhaseRecord) -> bool:
        """Too few results are in, and waiting on will not bring more."""
        return not phase.pending or self._clock() >= phase.deadline_at

    def _extend_or_pause(self, phase: PhaseRecord) -> None:
        taken = {task.device_id for task in phase.tasks}
        fresh = [device_id for device_id in self._registry.available() if device_id not in taken]
        failed = phase.in_state(TaskState.FAILED)
        if not fresh and failed and not phase.pending:
            accepted = len(phase.in_state(TaskState.ACCEPTED))
            self._control.pause(
                f"round {phase.key.round_number}: {len(failed)} of {len(phase.tasks)} devices "
                f"could not {phase.key.kind} and only {accepted} could, below the minimum of "
                f"{self._spec.policy.minimum_devices}; {failed[0].device_id}: {failed[0].failure}"
            )
            self._control.heed()
        self._extend(phase, fresh)

    def _extend(self, phase: PhaseRecord, more_devices: Sequence[str]) -> None:
        now = self._clock()
        deadline_at = now + self._spec.policy.deadline_seconds
        self._tasks.extend_phase(phase.key, more_devices, now, deadline_at)
        log.info("phase extended", extra={"kind": phase.key.kind, "more": len(more_devices)})
        self._dispatch.announce(task.device_id for task in self._tasks.get_phase(phase.key).tasks)

    # --- parts ----------------------------------------------------------------------------------

    def _enough_devices(self, round_number: int) -> Sequence[str]:
        minimum = self._spec.policy.minimum_devices
        while True:
            rings = self._control.bell.rings
            self._control.heed()
            here = self._registry.available()
            if len(here) >= minimum:
                return here
            self._control.show(
                Progress(round_number, Phase.WAITING_FOR_DEVICES, len(here), minimum)
            )
            self._control.bell.wait(rings, _LOOK_AGAIN_SECONDS)

    def _with_store(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Call the store until it is there."""
        told = False
        while True:
            self._control.heed()
            try:
                return self._control.on_loop(call)
            except Unavailable as error:
                if not told:
                    log.warning("the run waits for the synthesis store: %s", error)
                    told = True
                rings = self._control.bell.rings
                self._control.bell.wait(rings, _STORE_RETRY_SECONDS)

    def _update(self, task: Task) -> Update:
        report = decode_update_report(task.report)
        path = self._content.blobs.local_path(report.update)
        weights = StoredWeights(path, f"the update of device {task.device_id!r}")
        return Update(task.device_id, weights, report.samples, report.loss, report.traffic)

    def _pool_spec(self, round_number: int, weights: Digest) -> PoolSpec:
        recipe = self._spec.recipe
        return PoolSpec(
            run_id=self._run_id,
            round_number=round_number,
            weights=weights,
            model=recipe.model,
            max_samples_per_device=recipe.synthesis.samples_per_device if recipe.synthesis else 1,
            method=recipe.method,
        )
