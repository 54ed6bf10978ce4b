"""What a worker and its pool tell each other, and what the pool tells the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings that all trials of a worker share."""

    results: Path
    data_root: Path
    save_seconds: float


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A worker has begun or resumed a trial."""

    trial_id: str


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A trial has completed a round."""

    trial_id: str
    done: int


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial has ended; `error` is the reason if it diverged."""

    trial_id: str
    error: str | None


@dataclass(frozen=True, slots=True)
class TrialBroke:
    """A trial could not be run and has no result."""

    trial_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment without an event."""


Event = RoundDone | TrialEnded | TrialBroke
