"""Conducts one phase: waits for devices, asks them, replaces lost ones, closes the phase.

A conductor lives in its run's driver thread, so it may block. It records every step before the
next. After a restart the same call finds the recorded steps and goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from coordinator.devices.registry import FleetView
from coordinator.monitoring.metrics import Metrics
from coordinator.records.phases import PhaseRecord, PhaseSpec, PhaseTask, Seen
from coordinator.records.runs import RunRecord
from coordinator.records.states import RoundState, TaskState
from coordinator.records.tasks import Task
from coordinator.runs.run_control import LOOK_AGAIN_SECONDS, DriverRecords, RunControl
from coordinator.runs.selection import Selection, eligible_for
from hfmds.domain.runs import Phase, Progress
from hfmds.domain.tasks import LateReason

log = logging.getLogger(__name__)

_SHOWN = {
    "train": Phase.TRAINING,
    "synthesise": Phase.SYNTHESISING,
    "evaluate": Phase.EVALUATING,
}
_SHOWN_AFTER = {
    "train": Phase.AGGREGATING,
    "synthesise": Phase.SEALING,
    "evaluate": Phase.EVALUATING,
}


class PhaseConductor:
    """Conducts the phases of one run, one at a time."""

    def __init__(
        self,
        run: RunRecord,
        control: RunControl,
        records: DriverRecords,
        selection: Selection,
        metrics: Metrics,
    ) -> None:
        self._run_id = run.run_id
        self._recipe = run.spec.recipe
        self._policy = run.spec.policy
        self._control = control
        self._rounds = records.rounds
        self._phases = records.phases
        self._work = records.work
        self._selection = selection
        self._metrics = metrics
        self._clock = control.now

    def conduct(self, spec: PhaseSpec) -> tuple[Task, ...]:
        """Have devices work until enough results are in. Returns the results by device id."""
        phase = self._phases.find(spec.key)
        patient_until = 0.0
        if phase is None:
            phase = self._open(spec)
        else:
            # After a restart devices are not back yet, and leases may have run out: wait for them.
            patience = max(self._policy.lease_seconds, self._selection.away_seconds)
            patient_until = self._clock() + patience
            if spec.asynchronous and not phase.tasks:
                self._wait_for_devices(spec)
        self._announce(phase)
        opened = not phase.closed
        closed_by = LateReason.GOAL_REACHED  # by the last result, unless the loop closes it
        while not phase.closed:
            self._control.wait_until_running()
            wakes = self._control.wakeup.wakes
            phase = self._phases.get(spec.key)
            self._show(phase)
            patient = self._clock() < patient_until
            if phase.closed or self._ask_more(spec, phase, patient):
                continue
            if reason := self._reason_to_close(spec, phase, patient):
                self._phases.close(phase.key, reason, self._clock())
                closed_by = reason
                continue
            if self._is_stuck(phase, patient):
                self._extend_or_pause(spec, phase, patient)
            self._control.wakeup.wait(wakes, LOOK_AGAIN_SECONDS)
        self._show(phase)
        results = self._phases.results(spec.key)
        if opened:
            self._count(spec, phase, closed_by)
        if spec.asynchronous:
            ages = (task.counted_round - task.key.round_number for task in results)
            self._metrics.updates_counted(ages)
        shown = _SHOWN_AFTER[spec.key.kind]
        self._control.show(Progress(spec.key.round_number, shown, len(results), len(results)))
        return results

    def begin_evaluation(self, round_number: int) -> None:
        """Record and show that a round evaluates its model."""
        now = self._clock()
        self._rounds.enter(self._run_id, round_number, RoundState.EVALUATING, now)
        self._control.show(Progress(round_number, Phase.EVALUATING, 0, 0))

    # --- opening --------------------------------------------------------------------------------

    def _open(self, spec: PhaseSpec) -> PhaseRecord:
        """Wait for devices and open the phase, choosing its devices from one view of the fleet."""
        view, now = self._wait_for_devices(spec), self._clock()
        devices = self._selection.choose(view, spec, now)
        seen = Seen(len(view.present), len(view.eligible))
        phase = self._phases.open(spec, devices, now, seen)
        self._metrics.funnel.assigned(spec.key.kind, len(devices))
        self._metrics.funnel.dropped(spec.key.kind, [LateReason.STALE] * phase.stale)
        return phase

    def _wait_for_devices(self, spec: PhaseSpec) -> FleetView:
        """Wait until enough devices are present, while the coordinator is not drained."""
        t = spec.key.round_number
        self._rounds.begin(self._run_id, t, self._clock())
        while True:
            self._control.wait_until_running()
            self._wait_while_drained(t)
            wakes = self._control.wakeup.wakes
            view = self._selection.view()
            lack = self._what_lacks(view, spec)
            if lack is None:
                return view
            self._control.show(lack)
            self._control.wakeup.wait(wakes, LOOK_AGAIN_SECONDS)

    def _wait_while_drained(self, round_number: int) -> None:
        """Wait while an operator keeps the coordinator drained."""
        while self._phases.are_drained():
            wakes = self._control.wakeup.wakes
            self._control.wait_until_running()
            self._control.show(Progress(round_number, Phase.DRAINED, 0, 0))
            self._control.wakeup.wait(wakes, LOOK_AGAIN_SECONDS)

    def _what_lacks(self, view: FleetView, spec: PhaseSpec) -> Progress | None:
        """Say what a phase waits for before it opens; None: it may open."""
        t = spec.key.round_number
        if spec.key.kind == "evaluate":
            if self._may_evaluate(view):
                return None
            return Progress(t, Phase.EVALUATING, 0, 0)
        able = self._selection.able(view, spec)
        count = len({*able, *self._still_at_work()})
        if count < self._policy.minimum_devices:
            return Progress(t, Phase.WAITING_FOR_DEVICES, count, self._policy.minimum_devices)
        if not self._selection.can_begin(view, able, self._control.wakeup.wake):
            return Progress(t, Phase.MAKING_PLAN, 0, 0)
        return None

    def _may_evaluate(self, view: FleetView) -> bool:
        """Whether enough devices are present, or the time to wait for them is over."""
        if len(view.eligible) >= self._policy.least_evaluations:
            return True
        evaluating = self._rounds.in_progress(self._run_id)
        since = evaluating.entered_at if evaluating else self._clock()
        return self._clock() >= since + self._policy.deadline_seconds

    def _still_at_work(self) -> set[str]:
        """Return the devices that continue work of earlier rounds, in asynchronous rounds.

        After a restart only the database knows them.
        """
        if self._policy.asynchronous is None:
            return set()
        return self._work.at_work(self._run_id, self._clock())

    # --- closing --------------------------------------------------------------------------------

    def _count(self, spec: PhaseSpec, phase: PhaseRecord, closed_by: LateReason) -> None:
        """Count how a phase ended, and the tasks that it ended without results."""
        self._metrics.phase_closed(phase.key.kind, closed_by)
        if not spec.asynchronous:  # there tasks outlive their phase
            over = (task for task in phase.tasks if task.state is TaskState.OVER)
            reasons = [LateReason[task.over_reason] for task in over]
            self._metrics.funnel.dropped(phase.key.kind, reasons)

    def _reason_to_close(
        self, spec: PhaseSpec, phase: PhaseRecord, patient: bool
    ) -> LateReason | None:
        """Say why the phase may close now; None: it must wait for more results."""
        # An evaluation never holds a run up: it uses the results that are there.
        if phase.key.kind != "evaluate" and phase.counted < self._policy.minimum_devices:
            return None
        if not phase.pending and not (patient and spec.asynchronous):
            return LateReason.GOAL_REACHED
        if patient:  # and in asynchronous rounds, devices that are back may still join
            return None
        if self._clock() >= phase.deadline_at:
            return LateReason.DEADLINE
        return None if self._hopeful(self._selection.view(), phase) else LateReason.GONE

    def _is_stuck(self, phase: PhaseRecord, patient: bool) -> bool:
        """Whether too few results are in and waiting longer brings no more."""
        return not phase.pending or (not patient and self._clock() >= phase.deadline_at)

    def _hopeful(self, view: FleetView, phase: PhaseRecord) -> list[PhaseTask]:
        """Return the pending tasks whose devices are present or hold a live lease."""
        now = self._clock()
        return [
            task
            for task in phase.pending
            if (
                task.device_id in view.eligible
                if task.state is TaskState.ASSIGNED
                else task.lease_expires_at > now
            )
        ]

    # --- more devices ---------------------------------------------------------------------------

    def _ask_more(self, spec: PhaseSpec, phase: PhaseRecord, patient: bool) -> bool:
        """Replace devices that are too slow, and fill an asynchronous round. True if it did."""
        now, limit = self._clock(), self._policy.task_deadline_seconds
        if limit and not patient:
            slow = self._phases.end_slow(phase.key, now - limit, now)
            if slow:
                log.info("tasks were too slow", extra={"kind": phase.key.kind, "tasks": slow})
                if spec.asynchronous:
                    self._metrics.funnel.dropped(phase.key.kind, [LateReason.TOO_SLOW] * slow)
                view = self._selection.view()
                self._ask(phase, self._replacements(view, spec, phase, slow))
                return True
        if not spec.asynchronous:
            return False
        joining = self._selection.choose_joining(self._selection.view(), spec, phase, now)
        return self._ask(phase, joining)

    def _replacements(
        self, view: FleetView, spec: PhaseSpec, phase: PhaseRecord, places: int
    ) -> Sequence[str]:
        return self._selection.choose_replacements(view, spec, phase, places, self._clock())

    def _ask(self, phase: PhaseRecord, devices: Sequence[str]) -> bool:
        if devices:
            self._phases.ask(phase.key, devices, self._clock())
            self._metrics.funnel.assigned(phase.key.kind, len(devices))
            self._control.announce(tuple(devices))
        return bool(devices)

    def _extend_or_pause(self, spec: PhaseSpec, phase: PhaseRecord, patient: bool) -> None:
        """Extend a stuck phase and ask more devices; pause the run if all devices failed."""
        view = self._selection.view()
        fresh = self._replacements(view, spec, phase, self._missing(view, spec, phase))
        if phase.failed and not fresh and not phase.pending:
            if not patient:  # else devices that could replace them may be on the way back
                self._control.pause(self._complaint(phase))
            return
        self._phases.extend(phase.key, fresh, self._clock())
        self._metrics.funnel.assigned(phase.key.kind, len(fresh))
        log.info("phase extended", extra={"kind": phase.key.kind, "more": len(fresh)})
        self._announce(self._phases.get(phase.key))

    def _missing(self, view: FleetView, spec: PhaseSpec, phase: PhaseRecord) -> int:
        """Return how many more devices a stuck phase may ask."""
        if phase.key.kind == "synthesise" or not self._recipe.cohort_size:
            return len(eligible_for(view, spec))
        return self._recipe.cohort_size - phase.counted - len(self._hopeful(view, phase))

    def _complaint(self, phase: PhaseRecord) -> str:
        number, kind = phase.key.round_number, phase.key.kind
        summary = (
            f"round {number}: {len(phase.failed)} of {len(phase.tasks)} devices could not {kind} "
            f"and only {phase.counted} could, below the minimum of {self._policy.minimum_devices}; "
        )
        device_id, failure = self._phases.first_failure(phase.key)
        if device_id:
            return f"{summary}{device_id}: {failure}"
        limit = f"{self._policy.task_deadline_seconds:g} s"
        return f"{summary}all took longer than policy.task_deadline_seconds, {limit}"

    # --- telling --------------------------------------------------------------------------------

    def _announce(self, phase: PhaseRecord) -> None:
        self._control.announce(tuple(task.device_id for task in phase.pending))

    def _show(self, phase: PhaseRecord) -> None:
        expected = min(phase.goal or len(phase.tasks), len(phase.tasks))
        self._control.show(
            Progress(phase.key.round_number, _SHOWN[phase.key.kind], phase.counted, expected)
        )
