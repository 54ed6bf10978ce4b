"""What operators see of the coordinator: its drain, its status, its task funnels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Drain:
    """Whether the coordinator is drained."""

    on: bool
    since: datetime | None = None  # None: it was never changed
    by: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The coordinator's status; the counts are by state or stage, in lower case."""

    drain: Drain
    runs: Mapping[str, int]
    devices: Mapping[str, int]
    tasks: Mapping[str, int]  # that devices hold


@dataclass(slots=True)
class Funnel:
    """How far the tasks of one kind came; a task counts in every stage it has reached."""

    kind: str
    here: int = 0
    eligible: int = 0
    assigned: int = 0
    taken: int = 0
    downloaded: int = 0
    computed: int = 0
    uploaded: int = 0
    accepted: int = 0
    pending: int = 0
    unneeded: int = 0
    late: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)


STEPS = (
    "here",
    "eligible",
    "assigned",
    "taken",
    "downloaded",
    "computed",
    "uploaded",
    "accepted",
)
"""The fields of a funnel, from its wide end to its narrow end."""
