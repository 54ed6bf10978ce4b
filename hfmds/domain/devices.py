"""A device: its profile, its state, and which devices a run accepts."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import pydantic.dataclasses
from pydantic import Field

from hfmds.domain.tasks import TaskStage
from hfmds.domain.validation import STRICT, LargeCount, SettingsTable, require
from hfmds.errors import InvalidInput


class DeviceState(enum.Enum):
    """The state of a device as the coordinator knows it."""

    AVAILABLE = "available"
    WORKING = "working"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the coordinator has seen."""

    device_id: str
    state: DeviceState
    profile: DeviceProfile
    last_seen_at: datetime
    accepted_tasks: int
    failed_tasks: int
    task_id: str | None
    last_failure: str = ""
    stage: TaskStage | None = None
    has_twin: bool = False  # several devices run with this id


MAX_LABELS = 32


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def require_id(value: str, what: str) -> str:
    """Return an id if it is valid: safe in file names, URLs and metric labels."""
    if not _ID.fullmatch(value):
        raise InvalidInput(
            f"{what} {value[:140]!r} is not an id: use 1 to 128 of A-Z a-z 0-9 . _ - "
            "beginning with a letter or digit"
        )
    return value


def labels_from(pairs: Iterable[str] | Mapping[str, str], what: str) -> tuple[str, ...]:
    """Return labels as sorted `name=value`; refuse malformed, repeated or too many labels."""
    if not pairs:
        return ()
    if isinstance(pairs, Mapping):
        pairs = [f"{name}={value}" for name, value in pairs.items()]
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        require(bool(equals), f"{what} has {pair[:140]!r}; write a label as NAME=VALUE")
        require_id(name, f"{what}: label name")
        require_id(value, f"{what}: value of label {name!r}:")
        require(name not in labels, f"{what} has label {name!r} twice; leave one out")
        labels[name] = value
    require(
        len(labels) <= MAX_LABELS, f"{what} has {len(labels)} labels; {MAX_LABELS} are the most"
    )
    return tuple(f"{name}={labels[name]}" for name in sorted(labels))


def label_map(labels: Iterable[str]) -> dict[str, str]:
    """Return the values of well-formed labels by name."""
    return {name: value for name, _, value in (label.partition("=") for label in labels)}


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """The profile that a device reports about itself."""

    samples: int
    software_version: str
    engine: str
    labels: tuple[str, ...] = ()  # "name=value", by name
    free_memory_bytes: int = 0  # 0: unknown
    charging: bool | None = None  # None: unknown
    unmetered: bool | None = None


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class Eligibility(SettingsTable):
    """Which devices a run asks. A requirement fails if the device does not report the value."""

    table = "eligibility"
    labels: tuple[str, ...] = Field(
        default=(), description="Labels NAME=VALUE, of which a device must have all."
    )
    minimum_free_memory_bytes: LargeCount = Field(
        default=0, ge=0, description="Free memory a device must have, in bytes."
    )
    minimum_samples: LargeCount = Field(
        default=0, ge=0, description="Real samples a device must hold."
    )
    require_charging: bool = Field(
        default=False, description="Whether a device must be charging or on mains power."
    )
    require_unmetered: bool = Field(
        default=False, description="Whether a device's network must be free of charge by the byte."
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", labels_from(self.labels, "eligibility.labels"))

    def admits(self, profile: DeviceProfile) -> bool:
        """Whether the run asks a device with this profile."""
        return (
            set(self.labels) <= set(profile.labels)
            and profile.free_memory_bytes >= self.minimum_free_memory_bytes
            and profile.samples >= self.minimum_samples
            and (profile.charging is True or not self.require_charging)
            and (profile.unmetered is True or not self.require_unmetered)
        )
