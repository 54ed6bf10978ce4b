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
from coordinator.run_records import RunRecord
from coordinator.task_records import PhaseKey, PhaseRecord, Task, TaskState
from hfmds.algorithm.sampling import sample_cohort
from hfmds.algorithm.types import Evaluation, Pool, Traffic, Update, Weights
from hfmds.digest import Digest
from hfmds.errors import HfmdsError, Unavailable
from hfmds.wire.records import decode_synthesis_report, decode_update_report
from hfmds.wire.tensors import StoredWeights, encode_weights
from hfmds.wire.types import Contribution, Phase, PoolSpec, Progress

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_LOOK_AGAIN_SECONDS = 1.0  # leases and deadlines run out without anyone ringing
_STORE_RETRY_SECONDS = 1.0
_SHOWN = {"train": Phase.TRAINING, "synthesise": Phase.SYNTHESISING}


class RunControl(Protocol):
    """How the run's driver steers the fleet between two looks at the devices."""

    bell: Bell

    def heed(self) -> None:
        """Raise if the run is to stop; block while it is paused."""

    def pause(self, reason: str) -> None:
        """Pause the run until an operator resumes it."""

    def show(self, progress: Progress) -> None:
        """Tell operators what is going on."""

    def on_loop(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Make an asynchronous call from this thread and wait for its result."""


class RemoteFleet:
    """A `Fleet` whose devices are behind the network."""

    def __init__(self, run: RunRecord, control: RunControl, parts: Parts) -> None:
        self._run_id = run.run_id
        self._run_uid = run.run_uid
        self._spec = run.spec
        self._control = control
        self._tasks = parts.tasks
        self._registry = parts.registry
        self._dispatch = parts.dispatch
        self._content = parts.contents.of(run.run_id)
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
        key = PhaseKey(self._run_id, round_number, "synthesise")
        digest = self._content.blobs.put_bytes(encode_weights(weights))
        pool_id, spec = f"{self._run_uid}-{round_number}", self._pool_spec(round_number, digest)
        self._with_store(round_number, lambda: self._store.open_pool(pool_id, spec))
        accepted = self._conduct(key, digest, pool_id, lambda: self._enough_devices(round_number))
        reports = {task.device_id: decode_synthesis_report(task.report) for task in accepted}
        contributions = [Contribution(device, r.batch) for device, r in reports.items()]
        snapshot, missing = self._with_store(
            round_number, lambda: self._store.seal_pool(pool_id, contributions)
        )
        for contribution in missing:
            log.warning(
                "device %s reported a batch that the store does not have", contribution.device_id
            )
        traffic = sum((report.traffic for report in reports.values()), Traffic())
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
        phase = self._tasks.find_phase(key)
        # After a restart nobody is there yet, and leases may have run out: give devices time.
        patient_until = 0.0
        if phase is not None:
            patience = max(self._spec.policy.lease_seconds, self._registry.away_seconds)
            patient_until = self._clock() + patience
        else:
            phase = self._tasks.open_phase(
                key, weights, reference, choose_devices(), self._spec.policy, self._clock()
            )
        self._dispatch.announce(task.device_id for task in phase.tasks)
        while not phase.closed:
            self._control.heed()
            rings = self._control.bell.rings
            phase = self._tasks.get_phase(key)
            accepted = len(phase.in_state(TaskState.ACCEPTED))
            self._control.show(
                Progress(key.round_number, _SHOWN[key.kind], accepted, len(phase.tasks))
            )
            if self._is_done(phase, patient_until):
                phase = self._tasks.close_phase(key)
                break
            if self._is_stuck(phase, patient_until):
                self._extend_or_pause(phase)
            self._control.bell.wait(rings, _LOOK_AGAIN_SECONDS)
        return phase.in_state(TaskState.ACCEPTED)

    def _is_done(self, phase: PhaseRecord, patient_until: float) -> bool:
        """Enough results are in, and nobody is left whom it is worth waiting for."""
        if len(phase.in_state(TaskState.ACCEPTED)) < self._spec.policy.minimum_devices:
            return False
        now = self._clock()
        if not phase.pending:
            return True
        return now >= patient_until and (now >= phase.deadline_at or not self._hopeful(phase))

    def _is_stuck(self, phase: PhaseRecord, patient_until: float) -> bool:
        """Too few results are in, and waiting on will not bring more."""
        return not phase.pending or self._clock() >= max(phase.deadline_at, patient_until)

    def _hopeful(self, phase: PhaseRecord) -> list[Task]:
        """The pending tasks whose devices are there or hold a live lease."""
        now, here = self._clock(), set(self._registry.available(self._run_id))
        return [
            task
            for task in phase.pending
            if (
                task.device_id in here
                if task.state is TaskState.ASSIGNED
                else task.lease_expires_at > now
            )
        ]

    def _extend_or_pause(self, phase: PhaseRecord) -> None:
        fresh = self._replacements(phase)
        failed = phase.in_state(TaskState.FAILED)
        if failed and not fresh and not phase.pending:
            accepted = len(phase.in_state(TaskState.ACCEPTED))
            self._control.pause(
                f"round {phase.key.round_number}: {len(failed)} of {len(phase.tasks)} devices "
                f"could not {phase.key.kind} and only {accepted} could, below the minimum of "
                f"{self._spec.policy.minimum_devices}; {failed[0].device_id}: {failed[0].failure}"
            )
            return
        self._tasks.extend_phase(phase.key, fresh, self._clock())
        log.info("phase extended", extra={"kind": phase.key.kind, "more": len(fresh)})
        self._dispatch.announce(task.device_id for task in self._tasks.get_phase(phase.key).tasks)

    def _replacements(self, phase: PhaseRecord) -> Sequence[str]:
        """Devices to take the places of those that failed or are gone."""
        taken = {task.device_id for task in phase.tasks}
        here = [d for d in self._registry.available(self._run_id) if d not in taken]
        recipe = self._spec.recipe
        if phase.key.kind == "synthesise" or not recipe.cohort_size:
            return here
        busy = len(phase.in_state(TaskState.ACCEPTED)) + len(self._hopeful(phase))
        places = recipe.cohort_size - busy
        if places <= 0 or not here:
            return ()
        return sample_cohort(here, places, recipe.seed, phase.key.round_number)

    # --- parts ----------------------------------------------------------------------------------

    def _enough_devices(self, round_number: int) -> Sequence[str]:
        minimum = self._spec.policy.minimum_devices
        while True:
            self._control.heed()
            rings = self._control.bell.rings
            here = self._registry.available(self._run_id)
            # Who could not do this run's work before is spared it, as long as the others suffice.
            unable = self._tasks.unable(self._run_id)
            able = [device_id for device_id in here if device_id not in unable]
            if len(able) >= minimum:
                return able
            if len(here) >= minimum:
                return here
            self._control.show(
                Progress(round_number, Phase.WAITING_FOR_DEVICES, len(here), minimum)
            )
            self._control.bell.wait(rings, _LOOK_AGAIN_SECONDS)

    def _with_store(
        self, round_number: int, call: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Call the store until it is there; what it refuses pauses the run."""
        told = False
        while True:
            self._control.heed()
            rings = self._control.bell.rings
            try:
                return self._control.on_loop(call)
            except Unavailable as error:
                if not told:
                    log.warning("the run waits for the synthesis store: %s", error)
                    told = True
                self._control.show(Progress(round_number, Phase.WAITING_FOR_STORE, 0, 0))
                self._control.bell.wait(rings, _STORE_RETRY_SECONDS)
            except HfmdsError as error:
                self._control.pause(f"round {round_number}: the synthesis store refuses: {error}")

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
            max_samples_per_device=recipe.method.samples_per_device,
            method=recipe.method.name,
            with_shares=recipe.method.with_shares,
        )
