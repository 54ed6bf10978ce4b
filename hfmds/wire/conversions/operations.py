"""Conversion pairs of the coordinator's drain, status and funnels."""

from __future__ import annotations

from typing import Any

from hfmds.domain.administration.operations import STEPS, Drain, Funnel, Status
from hfmds.v1 import admin_pb2 as pb
from hfmds.wire.conversions.admin_calls import timestamp_from, timestamp_message

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
