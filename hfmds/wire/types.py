"""What the services say to each other, as plain values: the contract without protobuf.

Field meanings, units and limits are written once, in `protos/hfmds/v1`; a value here has the same
names. Conversion to and from messages lives in the modules beside this one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hfmds.algorithm.histograms import LeakageHistograms as LeakageHistograms
from hfmds.algorithm.limits import require_at_least
from hfmds.algorithm.pool_policy import PoolPolicy as PoolPolicy
from hfmds.algorithm.recipes import ModelSpec, Normalisation, Recipe
from hfmds.algorithm.types import DeviceEvaluation, Evaluation, LeakageSummary, Pool, Traffic
from hfmds.digest import Digest
from hfmds.errors import InvalidInput
from hfmds.wire.policies import Asynchronous as Asynchronous
from hfmds.wire.policies import DeviceProfile as DeviceProfile
from hfmds.wire.policies import EarlyStop as EarlyStop
from hfmds.wire.policies import Eligibility as Eligibility
from hfmds.wire.policies import EvaluationByDevices as EvaluationByDevices
from hfmds.wire.policies import Retention as Retention
from hfmds.wire.policies import RoundPolicy as RoundPolicy
from hfmds.wire.policies import require_id as require_id

# --- device and coordinator ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainWork:
    """Train on own data and, if there is one, the pool."""

    snapshot_id: str | None


@dataclass(frozen=True, slots=True)
class SynthesiseWork:
    """Make a synthetic batch and put it into the pool."""

    pool_id: str


@dataclass(frozen=True, slots=True)
class EvaluateWork:
    """Measure how the model does on own data."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task, leased to the device that receives it."""

    task_id: str
    run_id: str
    run_uid: str
    round_number: int
    lease_seconds: float
    recipe: Recipe
    seed: int
    weights: Digest
    work: TrainWork | SynthesiseWork | EvaluateWork
    plan: Digest | None = None  # for a device that computes by one
    traceparent: str = ""  # empty: nobody traces it


@dataclass(frozen=True, slots=True)
class UnreadableTask:
    """A leased task this version cannot read, as of a method that came later: to be given up."""

    task_id: str
    run_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """No work now."""

    after_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """No work ever again for this device."""

    reason: str


class LateReason(enum.Enum):
    """Why a result is not wanted any more; the value is what devices are told."""

    ACCEPTED = "accepted"
    GOAL_REACHED = "goal-reached"
    DEADLINE = "deadline"
    GONE = "gone"
    TOO_SLOW = "too-slow"
    STALE = "stale"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


class TaskStage(enum.IntEnum):
    """How far a device is with a task; each stage has those before it behind it."""

    ASSIGNED = 0  # it has not been told of it
    TAKEN = 1
    DOWNLOADED = 2
    COMPUTED = 3
    UPLOADED = 4


class FailureCause(enum.Enum):
    """Why a device gives a task up."""

    UNREADABLE = "unreadable"
    UNSUITABLE = "unsuitable"
    DIVERGED = "diverged"
    TRANSFER = "transfer"
    REFUSED = "refused"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a task cost its device, and the highest SSIM of the images it sent."""

    steps: int
    cpu_seconds: float
    peak_memory_bytes: int
    withheld_samples: int = 0
    ssim_paired_max: float | None = None  # None: no images were made
    ssim_nearest_max: float | None = None


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What a device hands in after training; the bytes were uploaded before."""

    update: Digest
    samples: int
    loss: float
    traffic: Traffic
    training_seconds: float
    device: DeviceReport | None = None  # None: it does not say


@dataclass(frozen=True, slots=True)
class SynthesisReport:
    """What a device hands in after synthesis; the batch is at the store."""

    batch: Digest
    samples: int
    leakage: LeakageSummary
    synthetic_accuracy: float | None  # None: not measured
    traffic: Traffic
    synthesis_seconds: float
    device: DeviceReport | None = None


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What a device hands in after it has evaluated a model."""

    evaluation: Evaluation
    traffic: Traffic
    evaluation_seconds: float
    device: DeviceReport | None = None


@dataclass(frozen=True, slots=True)
class UploadState:
    """How much of an announced piece of content the receiver holds."""

    offset: int
    complete: bool


# --- operator and coordinator -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A model that a run made."""

    run_id: str
    round_number: int

    def __str__(self) -> str:
        return f"the model of run {self.run_id!r} after round {self.round_number}"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a run is to do."""

    recipe: Recipe
    policy: RoundPolicy
    start_from: ModelVersion | None = None  # None: fresh weights, by the recipe's seed

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
    """What a running run is doing."""

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
    """How far the current phase is."""

    round_number: int
    phase: Phase
    done: int
    expected: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """How many rounds old the models were that the results of an asynchronous round began at."""

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
        """By which rounds are compared: on the held-out set, or without one by devices."""
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
    best_round: int = 0  # 0: none was evaluated


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run this version cannot read, as of a method that came later."""

    run_id: str
    problem: str


class DeviceState(enum.Enum):
    """What a device is doing, as far as the coordinator knows."""

    AVAILABLE = "available"
    WORKING = "working"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Device:
    """A device the coordinator has seen."""

    device_id: str
    state: DeviceState
    profile: DeviceProfile
    last_seen_at: datetime
    accepted_tasks: int
    failed_tasks: int
    task_id: str | None
    last_failure: str = ""
    stage: TaskStage | None = None
    has_twin: bool = False  # several run with its id


# --- the synthesis store ------------------------------------------------------------------------

_YEAR_SECONDS = 31_536_000


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool takes."""

    run_id: str
    round_number: int
    weights: Digest
    model: ModelSpec
    max_samples_per_device: int
    method: str
    with_shares: bool = False
    normalisation: Normalisation | None = None  # None: not said
    policy: PoolPolicy = field(default_factory=PoolPolicy)
    seal_quorum: int = 0  # 0: never by number
    seal_deadline_seconds: float = 0.0  # 0: never by time

    def __post_init__(self) -> None:
        require_at_least(0, seal_quorum=self.seal_quorum)
        if not 0 <= self.seal_deadline_seconds <= _YEAR_SECONDS:
            raise InvalidInput(
                f"seal_deadline_seconds is {self.seal_deadline_seconds}; it must be from 0 to a "
                f"year, {_YEAR_SECONDS}"
            )
        if self.normalisation and len(self.normalisation.mean) != self.model.channels:
            raise InvalidInput(
                f"normalisation has {len(self.normalisation.mean)} channels, "
                f"the model {self.model.channels}"
            )


class PoolState(enum.Enum):
    """Where a pool is in its life."""

    OPEN = "open"
    SEALED = "sealed"
    HALTED = "halted"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool and what is in it."""

    pool_id: str
    spec: PoolSpec
    state: PoolState
    state_reason: str
    devices: int
    samples: int
    leaking_samples: int
    leaking_batches: int
    leakage: LeakageHistograms
    opened_at: datetime
    snapshot_id: str = ""  # empty: none


@dataclass(frozen=True, slots=True, order=True)
class Contribution:
    """A device's batch."""

    device_id: str
    batch: Digest


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of what one device contributed at one refresh."""

    digest: Digest
    samples: int
    contributor: str
    class_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    first_round: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sealed pool. `shards` is empty in lists."""

    snapshot_id: str
    pool_id: str
    spec: PoolSpec
    samples: int
    class_histogram: tuple[int, ...]
    duplicates: int
    leakage: LeakageSummary
    sealed_at: datetime
    size_bytes: int
    parent_snapshot_id: str = ""  # empty: none
    carried_samples: int = 0
    repeated_samples: int = 0
    near_duplicates: int = 0
    near_duplicates_dropped: int = 0
    leaking_samples: int = 0
    leaking_samples_dropped: int = 0
    leaking_batches: int = 0
    near_duplicates_unknown: bool = False  # there were too many samples to look for them
    histograms: LeakageHistograms = field(default_factory=LeakageHistograms)
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedShard:
    """A shard of the share a device has room for."""

    shard: Shard
    missing: bool


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed, or would."""

    snapshot_ids: tuple[str, ...]
    erased_blobs: int
    erased_bytes: int


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What became of a device's contributions when its consent was taken back."""

    removed_batches: int
    remaining_snapshots: int
