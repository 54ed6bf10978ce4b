"""Estimates the work of trials, relative to each other, and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable

from hfmds.domain.methods import FedGan, FedMix, Hfmds, Moon
from hfmds.experiments.trials.trial import Trial

# The unit is a forward and backward pass of one image, measured roughly on one core.
_FORWARD = 0.4
_MOON = 1.6  # two more forward passes
_FEDMIX = 2.5  # differentiates twice
_GAN = 2.0
_SYNTHESIS_STEP = 0.8  # no gradient of weights


class TrialWork:
    """The work of each round of a trial."""

    def __init__(self, trial: Trial, train_images: int, test_images: int) -> None:
        split, recipe, method = trial.split, trial.recipe, trial.recipe.method
        own = split.samples_per_device or train_images // split.devices
        cohort = recipe.cohort_size or split.devices
        tested = _FORWARD * (trial.test_images or test_images)
        images = cohort * own * recipe.training.local_epochs
        self._until = [0.0]
        has_pool = False
        for t in range(1, recipe.rounds + 1):
            work = tested
            if method.refreshes(t):
                has_pool = True
                if isinstance(method, Hfmds):
                    synthetic = split.devices * method.samples_per_device
                    work += _SYNTHESIS_STEP * synthetic * (method.steps + 2)
            if isinstance(method, FedGan) and t <= method.gan_rounds:
                work += _GAN * cohort * own * method.gan_epochs
            elif isinstance(method, FedMix):
                work += _FEDMIX * images
            elif isinstance(method, Moon):
                work += _MOON * images
            else:
                work += images * (2 if has_pool else 1)
            self._until.append(self._until[-1] + work)

    @property
    def total(self) -> float:
        return self._until[-1]

    def until(self, round_number: int) -> float:
        """Return the work of the rounds up to this one."""
        return self._until[round_number]


class TimeLeft:
    """Estimates the remaining time from the speed so far."""

    def __init__(
        self,
        works: dict[str, TrialWork],
        workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._works = works
        self._workers = workers
        self._clock = clock
        self._reached: dict[str, float] = {}  # completed work by trial
        self._since: dict[str, float] = {}  # end of the trial's last round
        self._done = 0.0  # measured work, and its time
        self._seconds = 0.0

    def started(self, trial_id: str) -> None:
        self._since[trial_id] = self._clock()

    def round_done(self, trial_id: str, number: int) -> None:
        now, reached = self._clock(), self._works[trial_id].until(number)
        if trial_id in self._reached:  # the first round includes the start of the worker
            self._done += reached - self._reached[trial_id]
            self._seconds += now - self._since[trial_id]
        self._reached[trial_id], self._since[trial_id] = reached, now

    def ended(self, trial_id: str) -> None:
        self._reached[trial_id] = self._works[trial_id].total

    @property
    def share_done(self) -> float:
        total = sum(work.total for work in self._works.values())
        return sum(self._reached.values()) / total if total else 1.0

    def seconds(self) -> float | None:
        """Return the remaining seconds; None before the first measurement."""
        if not self._done:
            return None
        speed = self._done / self._seconds
        left = {
            trial_id: work.total - self._reached.get(trial_id, 0.0)
            for trial_id, work in self._works.items()
        }
        # A trial runs on one worker: the longest trial is a lower bound.
        return max(sum(left.values()) / self._workers, max(left.values(), default=0.0)) / speed
