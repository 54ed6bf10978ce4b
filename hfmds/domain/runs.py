"""A run, its rounds and its current phase."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from hfmds.domain.digest import Digest
from hfmds.domain.histograms import LeakageHistograms as LeakageHistograms
from hfmds.domain.learning import DeviceEvaluation, Evaluation, Pool, Traffic
from hfmds.domain.pool_policy import PoolPolicy as PoolPolicy
from hfmds.domain.recipe import Recipe
from hfmds.domain.round_policy import (
    Asynchronous,
    RoundPolicy,
)
from hfmds.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A model of a run."""

    run_id: str
    round_number: int

    def __str__(self) -> str:
        return f"the model of run {self.run_id!r} after round {self.round_number}"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The description of a run: what it learns, and how its rounds are governed."""

    recipe: Recipe
    policy: RoundPolicy
    start_from: ModelVersion | None = None  # None: fresh weights from the recipe's seed

    def __post_init__(self) -> None:
        size = self.recipe.cohort_size
        if size and size < self.policy.minimum_devices:
            raise InvalidInput(
                f"recipe.cohort_size is {size}, below policy.minimum_devices "
                f"{self.policy.minimum_devices}: such a round could never close"
            )
        aggregation = self.recipe.aggregation
        if self.policy.minimum_devices < aggregation.least_devices:
            raise InvalidInput(
                f"policy.minimum_devices is {self.policy.minimum_devices}, but aggregation.rule "
                f"{aggregation.rule} with these settings needs at least "
                f"{aggregation.least_devices} devices; set it to that or more"
            )
        if self.policy.asynchronous:
            self._check_asynchronous(self.policy.asynchronous)

    def _check_asynchronous(self, mode: Asynchronous) -> None:
        method = self.recipe.method
        if method.preparation_rounds:
            raise InvalidInput(
                f"policy.asynchronous is given, but {method.name} trains other weights in its "
                "first rounds than later; leave it out, or choose another method"
            )
        if self.recipe.cohort_size:
            raise InvalidInput(
                f"recipe.cohort_size is {self.recipe.cohort_size}, but asynchronous rounds have no "
                "cohort; leave it out, and set asynchronous.concurrency"
            )
        if mode.buffer_size < self.policy.minimum_devices:
            raise InvalidInput(
                f"asynchronous.buffer_size is {mode.buffer_size}, below policy.minimum_devices "
                f"{self.policy.minimum_devices}; ask for fewer devices, or a larger buffer"
            )
        if mode.concurrency and mode.concurrency < self.policy.minimum_devices:
            raise InvalidInput(
                f"asynchronous.concurrency is {mode.concurrency}, below policy.minimum_devices "
                f"{self.policy.minimum_devices}: such a round could never open"
            )


class RunState(enum.Enum):
    """Where a run is in its life."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DELETING = "being deleted"

    @property
    def ended(self) -> bool:
        return self not in (RunState.RUNNING, RunState.PAUSED)


class Phase(enum.Enum):
    """The current phase of a running run."""

    WAITING_FOR_DEVICES = "waiting for devices"
    SYNTHESISING = "synthesising"
    TRAINING = "training"
    AGGREGATING = "aggregating"
    WAITING_FOR_STORE = "waiting for the store"
    DRAINED = "waiting for the end of a drain"
    MAKING_PLAN = "making a plan"
    SEALING = "sealing the pool"
    EVALUATING = "evaluating"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of the current phase."""

    round_number: int
    phase: Phase
    done: int
    expected: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """The age, in rounds, of the models that an asynchronous round's results began with."""

    mean: float
    maximum: int


@dataclass(frozen=True, slots=True)
class Round:
    """A completed round."""

    number: int
    device_ids: tuple[str, ...]
    weights: Digest
    training_loss: float
    evaluation: Evaluation | None
    refreshed: bool
    pool: Pool | None
    traffic: Traffic
    duration_seconds: float
    staleness: Staleness | None = None
    server_state: Digest | None = None
    device_evaluation: DeviceEvaluation | None = None
    model_dropped: bool = False

    @property
    def accuracy(self) -> float | None:
        """The accuracy that compares rounds: on the held-out set, or without one on devices."""
        measured = self.evaluation or self.device_evaluation
        return measured.accuracy if measured else None


@dataclass(frozen=True, slots=True)
class Run:
    """A run, without the list of its rounds."""

    run_id: str
    spec: RunSpec
    state: RunState
    state_reason: str
    created_at: datetime
    progress: Progress | None
    completed_rounds: int
    last_round: Round | None
    best_round: int = 0  # 0: no round was evaluated


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run that this version cannot read, for example of a newer method."""

    run_id: str
    problem: str
