"""Selects the devices of a phase: present, eligible for the run, and drawn.

The run's seed, the round and the purpose of a draw decide it. So a round that is begun again asks
the same devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from coordinator.devices.registry import FleetView, Registry
from coordinator.records.device_work import DeviceWork
from coordinator.records.phases import PhaseRecord, PhaseSpec
from coordinator.records.runs import RunRecord
from hfmds.algorithm.evaluation import choose_evaluators
from hfmds.algorithm.sampling import Candidate, choose_cohort, sample_cohort
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.recipe import Recipe


class PlanReady(Protocol):
    """Tells whether devices can begin to work on a recipe at once."""

    def __call__(
        self, recipe: Recipe, profiles: Iterable[DeviceProfile], when_ready: Callable[[], None]
    ) -> bool:
        """Return False if a device needs a plan that is still being made; call back then."""


class Selection:
    """Selects devices for one run, from one view of the fleet for each decision."""

    def __init__(
        self, run: RunRecord, registry: Registry, work: DeviceWork, plan_ready: PlanReady
    ) -> None:
        self._run_id = run.run_id
        self._recipe = run.spec.recipe
        self._policy = run.spec.policy
        self._registry = registry
        self._work = work
        self._plan_ready = plan_ready

    @property
    def away_seconds(self) -> float:
        """After this time of silence a device counts as away."""
        return self._registry.away_seconds

    def view(self) -> FleetView:
        """Look at the fleet."""
        return self._registry.view(self._run_id, self._policy.eligibility)

    def able(self, view: FleetView, spec: PhaseSpec) -> list[str]:
        """Return the eligible devices that are likely to do a phase's work.

        Devices that could not do this run's work before are left out if enough others remain.
        """
        eligible = eligible_for(view, spec)
        # A device that could not evaluate may well be able to train.
        unable = self._work.unable(self._run_id, "synthesise", "train")
        able = [device_id for device_id in eligible if device_id not in unable]
        return able if len(able) >= self._policy.minimum_devices else eligible

    def can_begin(
        self, view: FleetView, devices: Collection[str], when_ready: Callable[[], None]
    ) -> bool:
        """Whether no device must wait for a plan, which would use up the phase's time."""
        profiles = [view.present[device_id] for device_id in devices]
        return self._plan_ready(self._recipe, profiles, when_ready)

    def choose(self, view: FleetView, spec: PhaseSpec, now: float) -> Sequence[str]:
        """Choose the devices that a phase asks first."""
        if spec.asynchronous:  # they join once it is open, up to the mode's concurrency
            return ()
        if spec.key.kind == "evaluate":
            return self._choose_evaluators(view, spec, now)
        able = self.able(view, spec)
        if spec.key.kind == "synthesise":
            return able
        t = spec.key.round_number
        candidates = self._candidates(view, able, now)
        cohort = choose_cohort(candidates, self._recipe, t)
        return (*cohort, *self._spares(candidates, cohort, t))

    def choose_joining(
        self, view: FleetView, spec: PhaseSpec, phase: PhaseRecord, now: float
    ) -> Sequence[str]:
        """Choose devices to join an asynchronous round, up to its mode's concurrency."""
        mode = self._policy.asynchronous
        if mode is None:
            return ()
        idle = [d for d in self.able(view, spec) if d not in phase.asked]
        places = mode.concurrency - len(phase.pending) if mode.concurrency else len(idle)
        candidates = self._candidates(view, idle, now)
        return self._draw(candidates, places, spec.key.round_number, "buffer")

    def choose_replacements(
        self, view: FleetView, spec: PhaseSpec, phase: PhaseRecord, places: int, now: float
    ) -> Sequence[str]:
        """Choose devices to replace those that a phase has lost."""
        fresh = [d for d in eligible_for(view, spec) if d not in phase.asked]
        candidates = self._candidates(view, fresh, now)
        purpose = f"replacements {len(phase.tasks)}"
        return self._draw(candidates, places, spec.key.round_number, purpose)

    def _choose_evaluators(self, view: FleetView, spec: PhaseSpec, now: float) -> Sequence[str]:
        """Choose the devices that evaluate; not those at work if the others suffice."""
        wanted = self._policy.evaluation
        unable = self._work.unable(self._run_id, "synthesise", "train", "evaluate")
        able = [device_id for device_id in view.eligible if device_id not in unable]
        busy = self._work.at_work(self._run_id, now)
        idle = [device_id for device_id in able if device_id not in busy]
        devices = idle if len(idle) >= wanted.devices else able
        candidates = self._candidates(view, devices, now)
        return choose_evaluators(wanted, candidates, self._recipe, spec.key.round_number)

    def _candidates(
        self, view: FleetView, devices: Sequence[str], now: float
    ) -> Sequence[Candidate]:
        """Describe devices for a draw.

        A round would have to wait for devices that work for another run. They are left out if
        enough others remain.
        """
        if self._recipe.cohort_size:
            busy = self._work.at_work_elsewhere(self._run_id, now)
            idle = [device_id for device_id in devices if device_id not in busy]
            if len(idle) >= self._policy.asked(self._recipe.cohort_size):
                devices = idle
        losses: dict[str, float] = {}
        if self._recipe.sampling.strategy == "power_of_choice":
            losses = self._work.last_losses(self._run_id)
        return [
            Candidate(device_id, view.present[device_id].samples, losses.get(device_id))
            for device_id in devices
        ]

    def _spares(
        self, candidates: Sequence[Candidate], cohort: Collection[str], round_number: int
    ) -> Sequence[str]:
        """Choose devices to ask besides a cohort, because some of it will not deliver."""
        goal = self._recipe.cohort_size
        extra = self._policy.asked(goal) - len(cohort) if goal else 0
        rest = [candidate for candidate in candidates if candidate.device_id not in cohort]
        return self._draw(rest, extra, round_number, "spares")

    def _draw(
        self, candidates: Sequence[Candidate], places: int, round_number: int, purpose: str
    ) -> Sequence[str]:
        """Draw at most so many of the candidates."""
        if places <= 0:
            return ()
        recipe = self._recipe
        return sample_cohort(
            candidates, places, recipe.sampling, recipe.seed, round_number, purpose
        )


def eligible_for(view: FleetView, spec: PhaseSpec) -> list[str]:
    """Return the devices that suit the run and that the phase does not exclude, in order."""
    return [device_id for device_id in view.eligible if device_id not in spec.excluded]
