"""What operators see of the whole: drain, status, funnels. Values and their conversion pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hfmds.v1 import admin_pb2 as pb
from hfmds.wire.conversions.admin_calls import timestamp_from, timestamp_message


@dataclass(frozen=True, slots=True)
class Drain:
    """Whether the coordinator is drained."""

    on: bool
    since: datetime | None = None  # None: it never was otherwise
    by: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """How the coordinator is as a whole; the counts are by state, or stage, in lower case."""

    drain: Drain
    runs: Mapping[str, int]
    devices: Mapping[str, int]
    tasks: Mapping[str, int]  # that devices have


@dataclass(slots=True)
class Funnel:
    """How far the tasks of one kind came; each counts in every stage it has been through."""

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
"""The fields of a funnel from its wide to its narrow end."""

_COUNTS = (*STEPS, "pending", "unneeded")
_CAUSES = ("late", "failed", "refused")


def drain_message(drain: Drain) -> pb.Drain:
    """To the wire."""
    since = timestamp_message(drain.since) if drain.since else None
    return pb.Drain(on=drain.on, since=since, by=drain.by)


def drain_from(message: pb.Drain) -> Drain:
    """From the wire."""
    since = timestamp_from(message.since) if message.HasField("since") else None
    return Drain(message.on, since, message.by)


def status_message(status: Status) -> pb.GetStatusResponse:
    """To the wire."""
    return pb.GetStatusResponse(
        drain=drain_message(status.drain),
        runs=status.runs,
        devices=status.devices,
        tasks=status.tasks,
    )


def status_from(message: pb.GetStatusResponse) -> Status:
    """From the wire."""
    return Status(
        drain_from(message.drain), dict(message.runs), dict(message.devices), dict(message.tasks)
    )


def funnel_message(funnel: Funnel) -> pb.Funnel:
    """To the wire."""
    fields = {name: getattr(funnel, name) for name in (*_COUNTS, *_CAUSES)}
    return pb.Funnel(kind=funnel.kind, **fields)


def funnel_from(message: pb.Funnel) -> Funnel:
    """From the wire."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in _COUNTS}
    fields |= {name: dict(getattr(message, name)) for name in _CAUSES}
    return Funnel(message.kind, **fields)
