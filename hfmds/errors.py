"""Errors, named for the person who can act on them.

HfmdsError
├── ConfigurationError   a setting, file or data set is wrong          the operator fixes it
├── InvalidInput         a message, tensor or image is malformed       the sender fixes it
│   ├── CorruptData      bytes do not match their digest               the sender sends them again
│   └── Diverged         learning left the finite numbers              lower the rate it names
├── NotFound             a named thing does not exist
├── Conflict             the name is taken by something different
├── WrongState           the thing exists but cannot do that now
├── TooLate              the round or lease it belonged to is over     ask for new work
├── LimitExceeded        a size, count or quota was passed
├── NotAllowed           the caller may not touch this thing
└── Unavailable          a peer is away or not ready                   try again

`hfmds.service.status` maps each class to a gRPC status code and back. Every message names the
thing, the cause and the remedy. If it names an internal detail, such as the address of a database,
`public` is the message for the caller.
"""

from __future__ import annotations


class HfmdsError(Exception):
    """Base of all errors that this project raises on purpose."""

    exit_code = 1

    def __init__(self, message: str = "", *, public: str | None = None) -> None:
        """`public` replaces the message in answers to callers."""
        super().__init__(message)
        self.public = message if public is None else public


class ConfigurationError(HfmdsError):
    """A setting, file or data set of the process is wrong."""

    exit_code = 2


class InvalidInput(HfmdsError):
    """A message, tensor or image does not have the required form."""


class CorruptData(InvalidInput):
    """Bytes do not match their digest."""


class Diverged(InvalidInput):
    """A loss, an image or a weight is not a finite number."""


class NotFound(HfmdsError):
    """The named run, task, pool, snapshot or blob does not exist."""


class Conflict(HfmdsError):
    """The same key was used before for something different."""


class WrongState(HfmdsError):
    """The thing exists, but its state does not allow the operation."""


class TooLate(HfmdsError):
    """The work was for a round or lease that is over; the device should check in again."""

    def __init__(self, message: str, reason: str = "") -> None:
        """`reason` is for programs: one from the list in coordinator.proto, or empty."""
        super().__init__(message)
        self.reason = reason


class LimitExceeded(HfmdsError):
    """A size, count or quota was passed."""


class NotAllowed(HfmdsError):
    """The caller may not act on this thing."""


class Unavailable(HfmdsError):
    """A peer is away or not ready yet; the same call may succeed later."""

    def __init__(
        self,
        message: str,
        retry_after_seconds: float | None = None,
        *,
        public: str | None = None,
    ) -> None:
        """`retry_after_seconds` is the retry time from the peer, if it sent one."""
        super().__init__(message, public=public)
        self.retry_after_seconds = retry_after_seconds
