"""Conversion pair of events. `hfmds.event_chain` describes the chain that they form."""

from __future__ import annotations

from hfmds.errors import InvalidInput
from hfmds.event_chain import Event
from hfmds.v1 import common_pb2 as pb

_LAST_MICROSECOND = 253_402_300_799_999_999  # of the year 9999


def event_message(event: Event) -> pb.Event:
    """To the wire; the response names the log once."""
    return pb.Event(
        sequence=event.sequence,
        at_microseconds=event.at_microseconds,
        kind=event.kind,
        details=event.details,
        previous_hash=event.previous_hash,
        hash=event.hash,
    )


def event_from(log_id: str, message: pb.Event) -> Event:
    """From the wire, unchecked: `hfmds.event_chain` verifies the chain."""
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
