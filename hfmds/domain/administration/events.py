"""The kinds of events. `hfmds.event_chain` describes the chain that events form."""

from __future__ import annotations

import enum


class EventKind(enum.StrEnum):
    """What happened. A log may also hold kinds of a later version."""

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
    # These concern the fleet, not a run.
    TOKEN_CREATED = "token-created"  # noqa: S105 (no secret)
    TOKEN_REVOKED = "token-revoked"  # noqa: S105 (no secret)
    DEVICE_ENROLLED = "device-enrolled"
    DEVICE_REVOKED = "device-revoked"
    DEVICE_QUARANTINED = "device-quarantined"
    DEVICE_RELEASED = "device-released"
    CERTIFICATE_REVOKED = "certificate-revoked"
