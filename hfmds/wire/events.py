"""The event log of a run: a chain of hashes, made by the coordinator and checked by anybody.

Each event's hash covers all of it and the hash before, and the first one begins at the run's unique
id. So nothing can be changed, taken out, put in or moved without breaking the chain, except at its
end: who notes the last hash (the head) can later prove that nothing was cut off either.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hfmds.v1 import admin_pb2 as pb

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the log."""

    run_uid: str
    sequence: int  # from 1, without gaps
    at_microseconds: int  # since the epoch; whole, since it is hashed
    kind: str
    details: str  # a JSON object in canonical form
    previous_hash: str
    hash: str

    @property
    def at(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.at_microseconds)


def canonical(value: object) -> str:
    """JSON in the one form that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def origin(run_uid: str) -> str:
    """What stands for the hash before the first event of a run."""
    return hashlib.sha256(f"hfmds events of {run_uid}".encode()).hexdigest()


def make_event(
    run_uid: str, sequence: int, at_microseconds: int, kind: str, details: str, previous_hash: str
) -> Event:
    """The event with its hash."""
    covered = [run_uid, sequence, at_microseconds, kind, details, previous_hash]
    found = hashlib.sha256(canonical(covered).encode()).hexdigest()
    return Event(run_uid, sequence, at_microseconds, kind, details, previous_hash, found)


def flaw(events: Iterable[Event], run_uid: str, head: str = "") -> str:
    """What is wrong with a log, at its first broken entry; empty: nothing is.

    `head` is a hash that was noted before, and that an honest log still has.
    """
    expected, number, seen = origin(run_uid), 0, not head
    for event in events:
        number += 1
        if event.sequence != number:
            return f"event {number} is missing: event {event.sequence} is in its place"
        what = f"event {number} ({event.kind}, {event.at:%Y-%m-%d %H:%M:%S})"
        if event.previous_hash != expected:
            return f"{what} does not continue what is before it"
        remade = make_event(
            run_uid, number, event.at_microseconds, event.kind, event.details, expected
        )
        if remade != event:
            return f"{what} is not what was written: its hash does not fit"
        expected = event.hash
        seen = seen or event.hash == head
    if not seen:
        return f"after event {number}: the noted head {head} is not in the log, which was cut off"
    return ""


def event_message(event: Event) -> pb.Event:
    """To the wire; the run is said once, beside the events."""
    return pb.Event(
        sequence=event.sequence,
        at_microseconds=event.at_microseconds,
        kind=event.kind,
        details=event.details,
        previous_hash=event.previous_hash,
        hash=event.hash,
    )


def event_from(run_uid: str, message: pb.Event) -> Event:
    """From the wire, as it is: whether it is sound is for `flaw` to say."""
    return Event(
        run_uid,
        message.sequence,
        message.at_microseconds,
        message.kind,
        message.details,
        message.previous_hash,
        message.hash,
    )
