"""Event logs as chains of hashes, which everybody can check.

The hash of an event covers the event and the hash before it. The first hash covers the unique id of
the log. So a change, a removal, an insertion or a move breaks the chain, except at its end. An
auditor who notes the last hash (the head) can later prove that the end is complete, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the log."""

    log_id: str  # the unique id of a run, or of a store
    sequence: int  # from 1, without gaps
    at_microseconds: int  # since the epoch; an integer, because it is hashed
    kind: str
    details: str  # a JSON object in canonical form
    previous_hash: str
    hash: str

    @property
    def at(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.at_microseconds)


def canonical(value: object) -> str:
    """Return the JSON text that goes into the hash."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def origin(log_id: str) -> str:
    """Return the hash before the first event of a log."""
    return hashlib.sha256(f"hfmds events of {log_id}".encode()).hexdigest()


def make_event(
    log_id: str, sequence: int, at_microseconds: int, kind: str, details: str, previous_hash: str
) -> Event:
    """Make an event with its hash."""
    covered = [log_id, sequence, at_microseconds, kind, details, previous_hash]
    own_hash = hashlib.sha256(canonical(covered).encode()).hexdigest()
    return Event(log_id, sequence, at_microseconds, kind, details, previous_hash, own_hash)


def flaw(events: Iterable[Event], log_id: str, head: str = "") -> str:
    """Describe the first fault of a log; empty if the log is sound.

    `head` is a hash that somebody noted earlier, and that a complete log still has.
    """
    expected, number, seen = origin(log_id), 0, not head
    for event in events:
        number += 1
        if event.sequence != number:
            return f"event {number} is missing: event {event.sequence} is in its place"
        what = f"event {number} ({event.kind}, {event.at:%Y-%m-%d %H:%M:%S})"
        if event.previous_hash != expected:
            return f"{what} does not continue what is before it"
        remade = make_event(
            log_id, number, event.at_microseconds, event.kind, event.details, expected
        )
        if remade != event:
            return f"{what} is not what was written: its hash does not fit"
        expected = event.hash
        seen = seen or event.hash == head
    if not seen:
        return f"after event {number}: the noted head {head} is not in the log, which was cut off"
    return ""
