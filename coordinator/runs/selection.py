"""Who is asked to work in a round: who is there, suits the run, and is drawn.

Draws are seeded by the run and the round, and named by their purpose, so that a round that is begun
again asks the same devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from coordinator.devices.registry import Registry
from coordinator.records.phases import PhaseRecords, Seen
from coordinator.records.runs import RunRecord
from hfmds.algorithm.sampling import Candidate, sample_cohort
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.recipe import Recipe


class PlanReady(Protocol):
    """Tells whether devices can begin to work on a run at once."""

    def __call__(
        self, recipe: Recipe, profiles: Iterable[DeviceProfile], when_ready: Callable[[], None]
    ) -> bool:
        """Return False if a device needs a plan that is still being made; report its end."""


class Selection:
    """Chooses devices for one run."""

    def __init__(
        self, run: RunRecord, registry: Registry, phases: PhaseRecords, plan_ready: PlanReady
    ) -> None:
        self._run_id = run.run_id
        self._recipe = run.spec.recipe
        self._policy = run.spec.policy
        self._registry = registry
        self.away_seconds = registry.away_seconds
        self._phases = phases
        self._plan_ready = plan_ready
        self.withdrawn: frozenset[str] = frozenset()  # of these the store takes no images

    def here(self, kind: str = "train") -> list[str]:
        """The devices that are there and suit the run's phases of this kind, by id."""
        there = self._registry.available(self._run_id, self._policy.eligibility)
        return [d for d in there if kind != "synthesise" or d not in self.withdrawn]

    def seen(self) -> Seen:
        """How many devices are there for this run, and how many of them suit it."""
        return Seen(len(self._registry.available(self._run_id)), len(self.here()))

    def able(self, kind: str = "train") -> list[str]:
        """Those of them to count on; fewer than the policy's minimum if there are not more.

        Who could not do this run's work before is spared it, as long as the others suffice.
        """
        here = self.here(kind)
        # Who cannot evaluate may well be able to train.
        unable = self._phases.unable(self._run_id, "synthesise", "train")
        able = [device_id for device_id in here if device_id not in unable]
        return able if len(able) >= self._policy.minimum_devices else here

    def plan_ready(self, devices: Collection[str], when_ready: Callable[[], None]) -> bool:
        """Whether the devices can begin; else a phase's time would pass with the plan's making."""
        here = self._registry.available(self._run_id)
        profiles = [profile for device_id, profile in here.items() if device_id in devices]
        return self._plan_ready(self._recipe, profiles, when_ready)

    def evaluators(self, wanted: int, now: float) -> list[Candidate]:
        """The devices that could evaluate a model; without those at work if the others suffice."""
        unable = self._phases.unable(self._run_id, "synthesise", "train", "evaluate")
        able = [device_id for device_id in self.here() if device_id not in unable]
        busy = self._phases.at_work(self._run_id, now)
        idle = [device_id for device_id in able if device_id not in busy]
        return self.candidates(idle if len(idle) >= wanted else able, now)

    def candidates(self, devices: Iterable[str], now: float) -> list[Candidate]:
        """The devices with what a draw may go by.

        Those at work for another run are left out as long as the others suffice: a round would
        have to wait for them.
        """
        devices = list(devices)
        if self._recipe.cohort_size:
            busy = self._phases.at_work_elsewhere(self._run_id, now)
            idle = [device_id for device_id in devices if device_id not in busy]
            if len(idle) >= self._policy.asked(self._recipe.cohort_size):
                devices = idle
        profiles = self._registry.available(self._run_id, self._policy.eligibility)
        losses: dict[str, float] = {}
        if self._recipe.sampling.strategy == "power_of_choice":
            losses = self._phases.last_losses(self._run_id)
        return [
            Candidate(device_id, profiles[device_id].samples, losses.get(device_id))
            for device_id in devices
            if device_id in profiles  # it may have gone since
        ]

    def spares(
        self, candidates: Sequence[Candidate], cohort: Collection[str], round_number: int
    ) -> tuple[str, ...]:
        """Devices that are asked besides a cohort, for those of it that will not deliver."""
        goal = self._recipe.cohort_size
        extra = self._policy.asked(goal) - len(cohort) if goal else 0
        rest = [candidate for candidate in candidates if candidate.device_id not in cohort]
        return self.draw(rest, extra, round_number, "spares")

    def draw(
        self, candidates: Sequence[Candidate], places: int, round_number: int, purpose: str
    ) -> tuple[str, ...]:
        """At most so many of the candidates."""
        if places <= 0:
            return ()
        recipe = self._recipe
        return sample_cohort(
            candidates, places, recipe.sampling, recipe.seed, round_number, purpose
        )
