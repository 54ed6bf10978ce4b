"""Access rules: which kinds of callers may call which methods.

Each service has a table of its methods. A device may speak only for itself: the `device_id` in its
requests must be its own. Without TLS, on one machine or for a trial, everybody may call everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfmds.errors import NotAllowed
from hfmds.service.security.identity import Identity, Kind

DEVICE = frozenset({Kind.DEVICE})
SERVICE = frozenset({Kind.SERVICE})
OWNER = frozenset({Kind.OWNER})  # may do everything
OPERATOR = OWNER | {Kind.OPERATOR}  # may steer
VIEWER = OPERATOR | {Kind.VIEWER}  # may read
ANYONE = frozenset(Kind)

STRANGERS_TOO = None
"""In a table: strangers may call the method, too, which checks them itself."""

Access = Mapping[str, frozenset[Kind] | None]
"""The kinds of callers of each method, by the method's name."""

IN_QUARANTINE = frozenset({"CheckIn", "Leave", "RenewCertificate", "BeginEnrolment", "Enrol"})
"""The methods that a device in quarantine may call: it stays a device, and waits."""


def require_known(identity: Identity | None) -> Identity:
    """Return the identity of the caller; NotAllowed if it is a stranger."""
    if identity is None:
        raise NotAllowed(
            "the caller's certificate or token names no device, service or admin of this fleet; "
            "show a certificate that one of the fleet's authorities signed directly for its kind "
            "of party, or a token that has not ended"
        )
    return identity


def require_access(access: Access, method: str, identity: Identity | None) -> Identity:
    """Return the identity of the caller; NotAllowed if the method is not for it."""
    identity = require_known(identity)
    admitted = access[method] or ()
    if identity.kind not in admitted:
        kinds = ", ".join(sorted(kind.value for kind in admitted))
        raise NotAllowed(f"{identity} may not call {method}; it is for {kinds}")
    return identity


def require_own(identity: Identity, request: Any) -> None:
    """Raise NotAllowed if a device speaks for another device."""
    if identity.kind is not Kind.DEVICE:
        return
    # Only the first message of an upload has a header with the device's id.
    header = getattr(request, "header", request)
    claimed = getattr(header, "device_id", identity.name)
    is_chunk = header is not request and request.WhichOneof("part") != "header"
    if claimed != identity.name and not is_chunk:
        raise NotAllowed(f"{identity} may not speak for device {claimed[:128]}")


def device_of(request: Any) -> str:
    """Return the device that a request names; empty if it names none."""
    name: str = getattr(getattr(request, "header", request), "device_id", "")
    return name
