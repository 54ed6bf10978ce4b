"""Who is shut out of the fleet though its certificate has not run out.

A device is shut out by time: what certificates of it begin at or before that are dead, whoever
made them, and it can come back with a later one. Any party can be shut out by a serial number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hfmds.errors import NotAllowed, TooLate
from hfmds.service.security.identity import Kind

if TYPE_CHECKING:  # it reads certificates with a library that a device without TLS does without
    from hfmds.service.security.certificates import Certificate

QUARANTINED = "quarantined"
"""Why a device's task is over, as coordinator.proto says it."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The whole list; it is never changed, only replaced."""

    dead_until: Mapping[str, int] = field(default_factory=dict)  # by device, seconds since 1970
    serials: frozenset[str] = frozenset()  # hex digits; at the token port, tokens by their ids
    quarantined: Mapping[str, str] = field(default_factory=dict)  # by device: why

    @property
    def version(self) -> str:
        """Names this very list."""
        parts = [dict(self.dead_until), sorted(self.serials), dict(self.quarantined)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def require_alive(self, certificate: Certificate) -> None:
        """NotAllowed if the certificate is dead."""
        if certificate.serial in self.serials:
            raise NotAllowed(f"certificate or token {certificate.serial} was revoked")
        identity = certificate.identity
        if identity is not None and identity.kind is Kind.DEVICE:
            dead_until = self.dead_until.get(identity.name)
            if dead_until is not None and certificate.begins <= dead_until:
                raise NotAllowed(
                    f"{identity} was revoked; it can enrol again with a token made for it since"
                )

    def require_trusted(self, device_id: str) -> None:
        """TooLate if the device is in quarantine: whatever it is at is over."""
        reason = self.quarantined.get(device_id)
        if reason is not None:
            raise TooLate(quarantine_notice(device_id, reason), QUARANTINED)


def quarantine_notice(device_id: str, reason: str) -> str:
    """What a device in quarantine is told."""
    return f"device {device_id} is in quarantine{f': {reason}' if reason else ''}"
