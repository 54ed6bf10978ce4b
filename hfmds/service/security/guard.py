"""The questions that a server asks about each call: who makes it, and may that party make it.

`Guard` is all that a server needs of the fleet's identities. Without TLS there are none: everybody
may call everything, and a device is the one that its request names.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import grpc

from hfmds.service.security.access import (
    IN_QUARANTINE,
    STRANGERS_TOO,
    Access,
    device_of,
    require_access,
    require_known,
    require_own,
)
from hfmds.service.security.caller import STRANGER, Caller, Recognise
from hfmds.service.security.identity import Kind
from hfmds.service.security.revocation_gate import Gate, GatedCall

_MAX_ID_CHARACTERS = 128


class Guard:
    """Admits the callers of one port."""

    def __init__(self, recognise: Recognise | None, gate: Gate) -> None:
        """Without `recognise` nobody can be known. `gate` has the revoked parties."""
        self.access: dict[str, Access] = {}  # by the name of a service
        self._recognise = recognise
        self._gate = gate

    async def who_is(self, context: grpc.aio.ServicerContext) -> Caller:
        """Return the party that makes the call."""
        return await self._recognise(context) if self._recognise else STRANGER

    def require_may(self, who: Caller, service: str, method: str) -> None:
        """Raise NotAllowed unless the party may call the method."""
        if self._recognise is None:
            return
        access = self.access.get(service)
        if access is None:  # health and reflection are for every party of the fleet
            require_known(who.identity)
        elif access[method] is not STRANGERS_TOO:
            require_access(access, method, who.identity)

    def call(self, who: Caller, method: str) -> AbstractContextManager[GatedCall]:
        """Around a call: refuse a revoked caller, and cut the call once its caller is revoked."""
        return self._gate.call(who.certificate, in_quarantine=method in IN_QUARANTINE)

    def require_request(self, call: GatedCall, service: str, method: str, request: Any) -> None:
        """Raise NotAllowed if a device speaks for another, or if the named device is excluded.

        All requests of one call are of the device that the first request names. With TLS, the name
        that a stranger gives has no effect.
        """
        if call.identity is not None:
            require_own(call.identity, request)
        elif self._recognise is None and not call.device_id:
            kinds = self.access.get(service, {}).get(method) or ()
            device_id = device_of(request)[:_MAX_ID_CHARACTERS]
            if Kind.DEVICE in kinds and device_id:
                self._gate.name_device(call, device_id)
