"""How rounds are governed: which devices are asked, when a round closes, what counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from pydantic import Field
from pydantic.dataclasses import dataclass

from hfmds.domain.devices import Eligibility
from hfmds.domain.validation import STRICT, Count, SettingsTable

OVER_SELECTION = 1.3
"""At scale, about a quarter of the asked devices deliver nothing (Bonawitz et al. 2019)."""

_MOST_SECONDS = 1e9


@dataclass(frozen=True, config=STRICT)
class Asynchronous(SettingsTable):
    """Rounds that wait for no device (FedBuff): a round is one flush of a buffer of results."""

    table = "asynchronous"
    buffer_size: Count = Field(ge=1, description="Results that make a round (K).")
    staleness_exponent: float = Field(
        default=0.5,
        ge=0,
        le=100,
        description="Exponent a: a result that is s rounds old counts 1 / (1 + s)^a.",
    )
    max_staleness: Count = Field(
        default=10, ge=0, description="Age in rounds above which a task is over."
    )
    concurrency: Count = Field(
        default=0, ge=0, description="Devices that work at the same time; 0: all."
    )

    def weight(self, staleness: int) -> float:
        """Return the weight of a result whose model is `staleness` rounds old."""
        return float((1 + staleness) ** -self.staleness_exponent)


@dataclass(frozen=True, config=STRICT)
class EarlyStop(SettingsTable):
    """When a run ends before its last round, because its accuracy does not rise."""

    table = "early_stop"
    patience_rounds: Count = Field(
        ge=1, description="Evaluated rounds in a row without improvement that end the run."
    )
    min_improvement: float = Field(
        default=0.0, ge=0, le=1, description="Rise in accuracy above which a round is better."
    )

    def exhausted(self, accuracies: Iterable[float]) -> bool:
        """Whether patience ends after rounds with these accuracies, in order."""
        best: float | None = None
        rounds_without_improvement = 0
        for accuracy in accuracies:
            if best is None or accuracy > best + self.min_improvement:
                best, rounds_without_improvement = accuracy, 0
            else:
                rounds_without_improvement += 1
        return rounds_without_improvement >= self.patience_rounds


@dataclass(frozen=True, config=STRICT)
class Retention(SettingsTable):
    """Which models are kept besides the best and the last; with no setting, all."""

    table = "retention"
    keep_last: Count = Field(default=0, ge=0, description="Newest models that are kept.")
    keep_every: Count = Field(
        default=0, ge=0, description="Models of rounds divisible by this are kept; 0: none."
    )

    @property
    def keeps_all(self) -> bool:
        return not self.keep_last and not self.keep_every

    def keeps(self, number: int, last: int, best: int) -> bool:
        """Whether to keep the model of a round, given the last and the best round."""
        if self.keeps_all:
            return True
        by_number = self.keep_every and number % self.keep_every == 0
        return bool(number in (last, best) or number > last - self.keep_last or by_number)

    def describe(self) -> str:
        """Say in words what `keeps` decides."""
        if self.keeps_all:
            return "all"
        further = f", one every {self.keep_every} rounds" if self.keep_every else ""
        return f"the best, the last {max(1, self.keep_last)}{further}"


@dataclass(frozen=True, config=STRICT)
class EvaluationByDevices(SettingsTable):
    """How many devices evaluate a new model, and how often."""

    table = "evaluation"
    devices: Count = Field(
        default=0, ge=0, description="Devices that evaluate a new model on their data; 0: none."
    )
    every_rounds: Count = Field(
        default=1,
        ge=1,
        description="Rounds between two evaluations; the last round always has one.",
    )

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether devices evaluate the model of this round; they always evaluate the last."""
        last = round_number == rounds
        return self.devices > 0 and (last or round_number % self.every_rounds == 0)


@dataclass(frozen=True, config=STRICT)
class RoundPolicy(SettingsTable):
    """How rounds are governed."""

    table = "policy"
    minimum_devices: Count = Field(
        default=1, ge=1, description="Devices that a round needs to open and to count."
    )
    deadline_seconds: float = Field(
        default=600.0,
        gt=0,
        le=_MOST_SECONDS,
        description="Seconds after which a phase closes with the results that have arrived.",
    )
    lease_seconds: float = Field(
        default=60.0,
        gt=0,
        le=_MOST_SECONDS,
        description="Seconds for which a silent device keeps its task.",
    )
    over_selection: float = Field(
        default=OVER_SELECTION,
        ge=1,
        le=100,
        description="Devices that are asked, as a factor of cohort_size; 1: no spares.",
    )
    task_deadline_seconds: float = Field(
        default=0.0,
        ge=0,
        le=_MOST_SECONDS,
        description="Seconds that a device may work on one task; 0: until the round closes.",
    )
    eligibility: Eligibility = Field(default_factory=Eligibility)
    asynchronous: Asynchronous | None = None
    evaluation: EvaluationByDevices = Field(default_factory=EvaluationByDevices)
    early_stop: EarlyStop | None = None
    retention: Retention = Field(default_factory=Retention)

    @property
    def least_evaluations(self) -> int:
        """The number of devices that must evaluate a model for their numbers to count."""
        return min(self.minimum_devices, self.evaluation.devices)

    def asked(self, goal: int) -> int:
        """Return how many devices to ask so that `goal` of them deliver."""
        # Exact decimals: in floats, 10 * 1.1 is above 11.
        return math.ceil(goal * Fraction(str(self.over_selection)))
