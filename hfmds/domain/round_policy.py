"""How rounds are governed, as plain values: who is asked, when a round closes, what counts.

Field meanings, units and limits are in `protos/hfmds/v1/admin.proto`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from hfmds.domain.devices import Eligibility
from hfmds.domain.validation import require_at_least, require_range
from hfmds.errors import InvalidInput

OVER_SELECTION = 1.3
"""As at scale (Bonawitz et al. 2019): about a quarter of those who are asked do not deliver."""


_MOST_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """Rounds that wait for nobody (FedBuff): a round is one flush of a buffer of results."""

    buffer_size: int  # K
    staleness_exponent: float = 0.5  # a: a result s rounds old weighs 1 / (1 + s)^a
    max_staleness: int = 10
    concurrency: int = 0  # devices at work at once; 0: all

    def __post_init__(self) -> None:
        require_at_least(1, asynchronous__buffer_size=self.buffer_size)
        exponent = self.staleness_exponent
        require_range(
            "asynchronous.staleness_exponent", exponent, 0 <= exponent <= 100, "in [0, 100]"
        )
        require_at_least(
            0,
            asynchronous__max_staleness=self.max_staleness,
            asynchronous__concurrency=self.concurrency,
        )

    def weight(self, staleness: int) -> float:
        """How much of a result counts that is so many rounds old."""
        return float((1 + staleness) ** -self.staleness_exponent)


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """When a run ends before its last round: its accuracy does not rise any more."""

    patience_rounds: int
    min_improvement: float = 0.0

    def __post_init__(self) -> None:
        require_at_least(1, early_stop__patience_rounds=self.patience_rounds)
        least = self.min_improvement
        require_range("early_stop.min_improvement", least, 0 <= least <= 1, "in [0, 1]")

    def exhausted(self, accuracies: Iterable[float]) -> bool:
        """Whether patience ends after evaluated rounds of these accuracies, in order."""
        reached: float | None = None
        waited = 0
        for accuracy in accuracies:
            if reached is None or accuracy > reached + self.min_improvement:
                reached, waited = accuracy, 0
            else:
                waited += 1
        return waited >= self.patience_rounds


@dataclass(frozen=True, slots=True)
class Retention:
    """Which models are kept besides the best and the last one; all, if nothing is said."""

    keep_last: int = 0
    keep_every: int = 0  # 0: none for its number

    def __post_init__(self) -> None:
        require_at_least(
            0, retention__keep_last=self.keep_last, retention__keep_every=self.keep_every
        )

    @property
    def keeps_all(self) -> bool:
        return not self.keep_last and not self.keep_every

    def keeps(self, number: int, last: int, best: int) -> bool:
        """Whether the model of a round is kept when these are the last one and the best."""
        if self.keeps_all:
            return True
        by_number = self.keep_every and number % self.keep_every == 0
        return bool(number in (last, best) or number > last - self.keep_last or by_number)


@dataclass(frozen=True, slots=True)
class EvaluationByDevices:
    """How many devices evaluate a new model, and how often."""

    devices: int = 0  # 0: none
    every_rounds: int = 1

    def __post_init__(self) -> None:
        require_at_least(0, evaluation__devices=self.devices)
        require_at_least(1, evaluation__every_rounds=self.every_rounds)

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether devices evaluate the model of this round; that of the last one they always do."""
        last = round_number == rounds
        return self.devices > 0 and (last or round_number % self.every_rounds == 0)


@dataclass(frozen=True, slots=True)
class RoundPolicy:
    """How rounds are governed."""

    minimum_devices: int = 1
    deadline_seconds: float = 600.0
    lease_seconds: float = 60.0
    over_selection: float = OVER_SELECTION
    task_deadline_seconds: float = 0.0  # 0: none
    eligibility: Eligibility = field(default_factory=Eligibility)
    asynchronous: Asynchronous | None = None
    evaluation: EvaluationByDevices = field(default_factory=EvaluationByDevices)
    early_stop: EarlyStop | None = None
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        for name, floor in (("minimum_devices", 1), ("deadline_seconds", 0), ("lease_seconds", 0)):
            value = getattr(self, name)
            if not floor <= value <= _MOST_SECONDS or value == 0:
                raise InvalidInput(f"policy.{name} is {value}; it must be positive")
        factor, seconds = self.over_selection, self.task_deadline_seconds
        require_range("policy.over_selection", factor, 1 <= factor <= 100, "in [1, 100]")
        require_range(
            "policy.task_deadline_seconds",
            seconds,
            0 <= seconds <= _MOST_SECONDS,
            f"in [0, {_MOST_SECONDS:.0e}], and 0 is none",
        )

    @property
    def least_evaluations(self) -> int:
        """How many devices must have evaluated a model for their numbers to count."""
        return min(self.minimum_devices, self.evaluation.devices)

    def asked(self, goal: int) -> int:
        """How many devices are asked so that `goal` of them deliver."""
        # As it is written: in floats, 10 * 1.1 is above 11.
        return math.ceil(goal * Fraction(str(self.over_selection)))
