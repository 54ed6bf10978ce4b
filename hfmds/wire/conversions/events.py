"""What events tell of, and events on the wire. The chain they form is `hfmds.event_chain`."""

from __future__ import annotations

import enum

from hfmds.errors import InvalidInput
from hfmds.event_chain import Event
from hfmds.v1 import common_pb2 as pb

_LAST_MICROSECOND = 253_402_300_799_999_999  # of the year 9999


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
    # Of the fleet, not of a run.
    TOKEN_CREATED = "token-created"  # noqa: S105 (no secret)
    TOKEN_REVOKED = "token-revoked"  # noqa: S105 (no secret)
    DEVICE_ENROLLED = "device-enrolled"
    DEVICE_REVOKED = "device-revoked"
    DEVICE_QUARANTINED = "device-quarantined"
    DEVICE_RELEASED = "device-released"
    CERTIFICATE_REVOKED = "certificate-revoked"
    REVOCATIONS_FORGOTTEN = "revocations-forgotten"


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
    """From the wire, as it is: whether it is sound is for `flaw` to say, once it can be shown."""
    if not 0 <= message.at_microseconds <= _LAST_MICROSECOND:
        raise InvalidInput(
            f"event {message.sequence} of {log_id} is {message.at_microseconds} us after 1970, "
            "which is no time before the year 10000"
        )
    return Event(
        log_id,
        message.sequence,
        message.at_microseconds,
        message.kind,
        message.details,
        message.previous_hash,
        message.hash,
    )
