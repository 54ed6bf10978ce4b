"""Conducts one phase: asks devices, waits for their results, replaces who is lost, closes it.

Lives in the run's driver thread, where blocking is fine. Every step is recorded before the next, so
after a restart the same call finds what was done and goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from coordinator.monitoring.metrics import Metrics
from coordinator.records.phases import PhasePlan, PhaseRecord, PhaseRecords, PhaseTask
from coordinator.records.runs import RunRecord
from coordinator.records.states import TaskState
from coordinator.records.tasks import Task
from coordinator.runs.run_control import LOOK_AGAIN_SECONDS, RunControl
from coordinator.runs.selection import Selection
from hfmds.domain.runs import Phase, Progress
from hfmds.domain.tasks import LateReason

log = logging.getLogger(__name__)

_SHOWN = {
    "train": Phase.TRAINING,
    "synthesise": Phase.SYNTHESISING,
    "evaluate": Phase.EVALUATING,
}


class PhaseConductor:
    """Conducts the phases of one run, one at a time."""

    def __init__(
        self,
        run: RunRecord,
        control: RunControl,
        phases: PhaseRecords,
        selection: Selection,
        metrics: Metrics,
    ) -> None:
        self._recipe = run.spec.recipe
        self._policy = run.spec.policy
        self._control = control
        self._phases = phases
        self._selection = selection
        self._metrics = metrics
        self._clock = control.now
        self._closed_by = LateReason.GOAL_REACHED

    def conduct(
        self, plan: PhasePlan, choose_devices: Callable[[], Sequence[str]]
    ) -> tuple[Task, ...]:
        """Have devices do a phase's work until enough is in; the results by device id."""
        phase = self._phases.find(plan.key)
        # After a restart nobody is there yet, and leases may have run out: give devices time.
        patient_until = 0.0
        if phase is not None:
            patience = max(self._policy.lease_seconds, self._selection.away_seconds)
            patient_until = self._clock() + patience
        else:
            self._control.wait_while_drained(plan.key.round_number)
            devices, seen = choose_devices(), self._selection.seen()
            phase = self._phases.open(plan, devices, self._clock(), seen)
            self._metrics.funnel.assigned(plan.key.kind, len(devices))
            self._metrics.funnel.dropped(plan.key.kind, [LateReason.STALE] * phase.stale)
        self._announce(phase)
        opened = not phase.closed
        self._closed_by = LateReason.GOAL_REACHED  # as a result does that is the last one wanted
        while not phase.closed:
            self._control.wait_until_running()
            rings = self._control.bell.rings
            phase = self._phases.get(plan.key)
            self._show(phase)
            if not phase.closed and not self._move_on(plan, phase, patient_until):
                self._control.bell.wait(rings, LOOK_AGAIN_SECONDS)
        self._show(phase)
        results = self._phases.results(plan.key)
        if opened:
            self._count(plan, phase)
        if plan.asynchronous:
            ages = (task.counted_round - task.key.round_number for task in results)
            self._metrics.updates_counted(ages)
        return results

    def _count(self, plan: PhasePlan, phase: PhaseRecord) -> None:
        """Count how a phase ended, and the tasks it does without."""
        self._metrics.phase_closed(phase.key.kind, self._closed_by)
        if not plan.asynchronous:  # there, tasks outlive their phase
            over = (task for task in phase.tasks if task.state is TaskState.OVER)
            reasons = [LateReason[task.over_reason] for task in over]
            self._metrics.funnel.dropped(phase.key.kind, reasons)

    def _move_on(self, plan: PhasePlan, phase: PhaseRecord, patient_until: float) -> bool:
        """Take the next step that is due; true if there is something new to look at."""
        now = self._clock()
        patient = now < patient_until
        if not patient and self._policy.task_deadline_seconds:
            slow = self._phases.end_slow(phase.key, now - self._policy.task_deadline_seconds, now)
            if slow:
                log.info("tasks were too slow", extra={"kind": phase.key.kind, "tasks": slow})
                if plan.asynchronous:
                    self._metrics.funnel.dropped(phase.key.kind, [LateReason.TOO_SLOW] * slow)
                self._ask(phase, self._replacements(phase, slow))
                return True
        if plan.asynchronous and self._ask(phase, self._for_buffer(phase)):
            return True
        reason = self._reason_to_close(plan, phase, patient)
        if reason:
            self._phases.close(phase.key, reason, now)
            self._closed_by = reason
            return True
        if self._is_stuck(phase, patient):
            self._extend_or_pause(phase, patient)
        return False

    def _reason_to_close(
        self, plan: PhasePlan, phase: PhaseRecord, patient: bool
    ) -> LateReason | None:
        """Enough results are in, and nobody is left whom it is worth waiting for."""
        # An evaluation is not worth holding a run up for: it makes do with what there is.
        if phase.key.kind != "evaluate" and phase.counted < self._policy.minimum_devices:
            return None
        if not phase.pending and not (patient and plan.asynchronous):
            return LateReason.GOAL_REACHED
        if patient:  # and in asynchronous rounds, devices that are back may still join
            return None
        if self._clock() >= phase.deadline_at:
            return LateReason.DEADLINE
        return None if self._hopeful(phase) else LateReason.GONE

    def _is_stuck(self, phase: PhaseRecord, patient: bool) -> bool:
        """Too few results are in, and waiting on will not bring more."""
        return not phase.pending or (not patient and self._clock() >= phase.deadline_at)

    def _hopeful(self, phase: PhaseRecord) -> list[PhaseTask]:
        """The pending tasks whose devices are there or hold a live lease."""
        now, here = self._clock(), set(self._selection.here())
        return [
            task
            for task in phase.pending
            if (
                task.device_id in here
                if task.state is TaskState.ASSIGNED
                else task.lease_expires_at > now
            )
        ]

    # --- more devices ---------------------------------------------------------------------------

    def _for_buffer(self, phase: PhaseRecord) -> tuple[str, ...]:
        """Devices to join an asynchronous round, so that as many are at work as may be."""
        mode = self._policy.asynchronous
        if mode is None:
            return ()
        idle = [d for d in self._selection.able() if d not in phase.asked]
        places = mode.concurrency - len(phase.pending) if mode.concurrency else len(idle)
        candidates = self._selection.candidates(idle, self._clock())
        return self._selection.draw(candidates, places, phase.key.round_number, "buffer")

    def _replacements(self, phase: PhaseRecord, places: int) -> tuple[str, ...]:
        """At most so many devices to take the places of those that are lost."""
        fresh = [d for d in self._selection.here(phase.key.kind) if d not in phase.asked]
        candidates = self._selection.candidates(fresh, self._clock())
        return self._selection.draw(
            candidates, places, phase.key.round_number, f"replacements {len(phase.tasks)}"
        )

    def _ask(self, phase: PhaseRecord, devices: Sequence[str]) -> bool:
        if devices:
            self._phases.ask(phase.key, devices, self._clock())
            self._metrics.funnel.assigned(phase.key.kind, len(devices))
            self._control.announce(tuple(devices))
        return bool(devices)

    def _extend_or_pause(self, phase: PhaseRecord, patient: bool) -> None:
        fresh = self._replacements(phase, self._missing(phase))
        if phase.failed and not fresh and not phase.pending:
            if not patient:  # else who could take their places may be on the way back
                self._control.pause(self._complaint(phase))
            return
        self._phases.extend(phase.key, fresh, self._clock())
        self._metrics.funnel.assigned(phase.key.kind, len(fresh))
        log.info("phase extended", extra={"kind": phase.key.kind, "more": len(fresh)})
        self._announce(self._phases.get(phase.key))

    def _missing(self, phase: PhaseRecord) -> int:
        """How many more devices a phase that is stuck may ask."""
        if phase.key.kind == "synthesise" or not self._recipe.cohort_size:
            return len(self._selection.here(phase.key.kind))
        return self._recipe.cohort_size - phase.counted - len(self._hopeful(phase))

    def _complaint(self, phase: PhaseRecord) -> str:
        number, kind = phase.key.round_number, phase.key.kind
        told = (
            f"round {number}: {len(phase.failed)} of {len(phase.tasks)} devices could not {kind} "
            f"and only {phase.counted} could, below the minimum of {self._policy.minimum_devices}; "
        )
        device_id, failure = self._phases.first_failure(phase.key)
        if device_id:
            return f"{told}{device_id}: {failure}"
        allowed = f"{self._policy.task_deadline_seconds:g} s"
        return f"{told}all took longer than policy.task_deadline_seconds, {allowed}"

    def _announce(self, phase: PhaseRecord) -> None:
        self._control.announce(tuple(task.device_id for task in phase.pending))

    def _show(self, phase: PhaseRecord) -> None:
        expected = min(phase.goal or len(phase.tasks), len(phase.tasks))
        self._control.show(
            Progress(phase.key.round_number, _SHOWN[phase.key.kind], phase.counted, expected)
        )
