"""Who may call what, where callers have certificates.

Each service says it of its methods in a table. A device may speak only for itself: the `device_id`
of its requests must be its own. Without TLS, which is for one machine and for trying things out,
everybody may call everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfmds.errors import NotAllowed
from hfmds.service.security.identity import Identity, Kind

DEVICE = frozenset({Kind.DEVICE})
SERVICE = frozenset({Kind.SERVICE})
OWNER = frozenset({Kind.OWNER})
OPERATOR = OWNER | {Kind.OPERATOR}
VIEWER = OPERATOR | {Kind.VIEWER}
ANYONE = frozenset(Kind)

STRANGERS_TOO = None
"""Also strangers: who they are is the method's own question."""

Access = Mapping[str, frozenset[Kind] | None]
"""By the name of a method: which kinds of callers it is for."""

IN_QUARANTINE = frozenset({"CheckIn", "Leave", "RenewCertificate", "BeginEnrolment", "Enrol"})
"""What a device may call while it is in quarantine: it stays a device, and waits."""


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
    """NotAllowed if a device speaks for another one."""
    if identity.kind is not Kind.DEVICE:
        return
    # The first message of an upload has its header, of which the others are a part.
    header = getattr(request, "header", request)
    claimed = getattr(header, "device_id", identity.name)
    is_chunk = header is not request and request.WhichOneof("part") != "header"
    if claimed != identity.name and not is_chunk:
        raise NotAllowed(f"{identity} may not speak for device {claimed[:128]}")


def device_of(request: Any) -> str:
    """The device that a request says it comes from; empty: it does not say."""
    name: str = getattr(getattr(request, "header", request), "device_id", "")
    return name
