"""Parties whose certificates are valid but excluded: revoked, or in quarantine.

The revocation of a device has a time. All certificates of the device that begin at or before that
time are dead, also those of another issuer. The device can come back with a later certificate.

A serial number revokes a certificate of any party. `Authority` ends each serial number with the
last 20 digits of the key's name. So a revoked serial number names a key, too, and all certificates
of this key are dead, whether anybody recorded them or not. Serial numbers of other programs, such
as cert-manager, name no key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hfmds.errors import NotAllowed, TooLate
from hfmds.service.security.identity import Kind

if TYPE_CHECKING:  # a device without TLS does not load the library for certificates
    from hfmds.service.security.certificates import Certificate

KEY_DIGITS = 20
"""The number of hex digits at the end of a serial number that name the certificate's key."""

QUARANTINED = "quarantined"
"""The reason for the end of a task, as in coordinator.proto."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The complete list of exclusions. A change makes a new list."""

    dead_until: Mapping[str, int] = field(default_factory=dict)  # by device, seconds since 1970
    serials: frozenset[str] = frozenset()  # hex digits; at the token port, tokens by their ids
    quarantined: Mapping[str, str] = field(default_factory=dict)  # by device: why
    _dead_keys: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_dead_keys", frozenset(map(end_of_key, self.serials)))

    @property
    def version(self) -> str:
        """A hash of the content of the list."""
        parts = [dict(self.dead_until), sorted(self.serials), dict(self.quarantined)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def require_alive(self, certificate: Certificate) -> None:
        """Raise NotAllowed if the certificate is revoked."""
        key = end_of_key(certificate.key_sha256)
        if certificate.serial in self.serials or key in self._dead_keys:
            raise NotAllowed(f"certificate or token {certificate.serial} was revoked")
        identity = certificate.identity
        if identity is not None and identity.kind is Kind.DEVICE:
            dead_until = self.dead_until.get(identity.name)
            if dead_until is not None and certificate.begins <= dead_until:
                raise NotAllowed(
                    f"{identity} was revoked; it can enrol again with a new token that names it"
                )

    def require_trusted(self, device_id: str) -> None:
        """Raise TooLate if the device is in quarantine: its work is over."""
        reason = self.quarantined.get(device_id)
        if reason is not None:
            raise TooLate(quarantine_notice(device_id, reason), QUARANTINED)


def end_of_key(name: str) -> str:
    """Return the digits that the name of a key and the serial numbers of its certificates share."""
    return name[-KEY_DIGITS:]


def quarantine_notice(device_id: str, reason: str) -> str:
    """Tell a device that it is in quarantine, and why."""
    return f"device {device_id} is in quarantine{f': {reason}' if reason else ''}"
