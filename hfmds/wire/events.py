"""What events tell of, and events on the wire. The chain they form is `hfmds.event_chain`."""

from __future__ import annotations

import enum

from hfmds.event_chain import Event
from hfmds.v1 import common_pb2 as pb


class EventKind(enum.StrEnum):
    """What an event tells of. A log may have kinds of a later version, too."""

    RUN_CREATED = "run-created"
    RUN_PAUSED = "run-paused"
    RUN_RESUMED = "run-resumed"
    RUN_COMPLETED = "run-completed"
    RUN_CANCELLED = "run-cancelled"
    RUN_DELETING = "run-deleting"
    RUN_DELETED = "run-deleted"
    ROUND_ENTERED = "round-entered"
    PHASE_OPENED = "phase-opened"
    PHASE_EXTENDED = "phase-extended"
    PHASE_CLOSED = "phase-closed"
    POOL_SEALED = "pool-sealed"
    TASK_ACCEPTED = "task-accepted"
    TASK_REFUSED = "task-refused"
    TASK_FAILED = "task-failed"
    TASK_LATE = "task-late"
    MODEL_KEPT = "model-kept"
    MODEL_DROPPED = "model-dropped"
    DRAIN_ON = "drain-on"
    DRAIN_OFF = "drain-off"


def event_message(event: Event) -> pb.Event:
    """To the wire; the log is said once, beside the events."""
    return pb.Event(
        sequence=event.sequence,
        at_microseconds=event.at_microseconds,
        kind=event.kind,
        details=event.details,
        previous_hash=event.previous_hash,
        hash=event.hash,
    )


def event_from(log_id: str, message: pb.Event) -> Event:
    """From the wire, as it is: whether it is sound is for `flaw` to say."""
    return Event(
        log_id,
        message.sequence,
        message.at_microseconds,
        message.kind,
        message.details,
        message.previous_hash,
        message.hash,
    )
