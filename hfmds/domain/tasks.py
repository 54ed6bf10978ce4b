"""Tasks for devices, and the reports that devices send back."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hfmds.domain.digest import Digest
from hfmds.domain.histograms import LeakageHistograms as LeakageHistograms
from hfmds.domain.learning import Evaluation, LeakageSummary, Traffic
from hfmds.domain.pool_policy import PoolPolicy as PoolPolicy
from hfmds.domain.recipe import Recipe


@dataclass(frozen=True, slots=True)
class TrainWork:
    """Train on the device's own data and on the pool, if there is one."""

    snapshot_id: str | None


@dataclass(frozen=True, slots=True)
class SynthesiseWork:
    """Make a synthetic batch and put it into the pool."""

    pool_id: str


@dataclass(frozen=True, slots=True)
class EvaluateWork:
    """Measure the model on the device's own data."""


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
    plan: Digest | None = None  # only for a device that runs plans
    traceparent: str = ""  # empty: not traced


@dataclass(frozen=True, slots=True)
class UnreadableTask:
    """A leased task that this version cannot read, for example of a newer method. Give it up."""

    task_id: str
    run_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """There is no work now; the device retries later."""

    after_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """There will be no more work for this device."""

    reason: str


class LateReason(enum.Enum):
    """Why a result no longer counts; devices receive the value."""

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
    """The progress of a device with a task; each stage includes those before it."""

    ASSIGNED = 0  # the device does not know of it yet
    TAKEN = 1
    DOWNLOADED = 2
    COMPUTED = 3
    UPLOADED = 4  # the coordinator has its result, which it accepts or refuses


class FailureCause(enum.Enum):
    """Why a device gives up a task."""

    UNREADABLE = "unreadable"
    UNSUITABLE = "unsuitable"
    DIVERGED = "diverged"
    TRANSFER = "transfer"
    REFUSED = "refused"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The cost of a task for its device, and the highest SSIM of the images it sent."""

    steps: int
    cpu_seconds: float
    peak_memory_bytes: int
    withheld_samples: int = 0
    ssim_paired_max: float | None = None  # None: no images were made
    ssim_nearest_max: float | None = None


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """The report of a device after training."""

    update: Digest
    samples: int
    loss: float
    traffic: Traffic
    training_seconds: float
    device: DeviceReport | None = None  # None: not reported


@dataclass(frozen=True, slots=True)
class SynthesisReport:
    """The report of a device after synthesis; the batch is at the store."""

    batch: Digest
    samples: int
    leakage: LeakageSummary
    synthetic_accuracy: float | None  # None: not measured
    traffic: Traffic
    synthesis_seconds: float
    device: DeviceReport | None = None


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The report of a device after evaluation."""

    evaluation: Evaluation
    traffic: Traffic
    evaluation_seconds: float
    device: DeviceReport | None = None


@dataclass(frozen=True, slots=True)
class UploadState:
    """How many bytes of an upload the receiver holds."""

    offset: int
    complete: bool
