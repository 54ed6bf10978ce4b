"""HTTP status codes for the errors of the domain."""

from __future__ import annotations

from collections.abc import Mapping

from hfmds.errors import (
    HfmdsError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
    Unavailable,
)


class NotKnown(HfmdsError):
    """The visitor showed nothing that identifies an admin, and should log in."""


_STATUS_OF: Mapping[type[HfmdsError], int] = {
    NotKnown: 401,
    NotAllowed: 403,
    NotFound: 404,
    InvalidInput: 400,
    LimitExceeded: 429,
    Unavailable: 503,
}


def status_of(error: HfmdsError) -> int:
    """Return the HTTP status of an error; 500 means a fault of this program."""
    return next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 500)
