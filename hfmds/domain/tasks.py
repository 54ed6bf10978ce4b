"""What the coordinator asks of a device, and what the device reports."""

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
