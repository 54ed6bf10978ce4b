"""The device issuer: signs the certificates of devices, if this coordinator has its key."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from hfmds.errors import WrongState
from hfmds.pki.authority import CLOCKS_DIFFER, Authority
from hfmds.pki.certificate_requests import Request
from hfmds.service.security.identity import Identity, Kind

_RENEW_FROM, _RENEW_TO = 0.6, 0.7  # of a lifetime, spread so that devices do not renew together


@dataclass(frozen=True, slots=True)
class DeviceCertificate:
    """A certificate for a device, with everything that the device should know about it."""

    device_id: str
    serial: str
    chain: bytes
    authority: bytes  # the authorities that the device should believe
    renew_after_seconds: float
    lifetime_seconds: float


class DeviceIssuer:
    """Signs certificates of devices. It keeps no records."""

    def __init__(
        self, authority: Authority | None, believed: Callable[[], bytes], lifetime_seconds: float
    ) -> None:
        """`believed` reads the believed authorities. Without `authority`, nobody enrols here."""
        self._authority = authority
        self._believed = believed
        self._lifetime_seconds = lifetime_seconds

    def require(self) -> Authority:
        """Return the authority that signs; WrongState if nobody can get a certificate here."""
        if self._authority is None:
            raise WrongState(
                "this coordinator has no device issuer, so it makes no certificates; set "
                "HFMDS_ISSUER_CERTIFICATE and HFMDS_ISSUER_KEY to enrol devices here"
            )
        return self._authority

    def issue(
        self, request: Request, device_id: str, now: float, revoked_at: float
    ) -> DeviceCertificate:
        """Sign a certificate that begins after the device's last revocation."""
        authority, identity = self.require(), Identity(Kind.DEVICE, device_id)
        request.require_identity(identity)
        lifetime = min(self._lifetime_seconds, authority.ends.timestamp() - now)
        if lifetime <= 0:
            raise WrongState("the device issuer's own certificate has expired; make another one")
        # It begins early enough for servers with slow clocks.
        begins = max(now - CLOCKS_DIFFER.total_seconds(), int(revoked_at) + 1)
        signed = authority.issue(
            request.key,
            identity,
            datetime.fromtimestamp(begins, UTC),
            datetime.fromtimestamp(now + lifetime, UTC),
        )
        renew_after = lifetime * random.uniform(_RENEW_FROM, _RENEW_TO)  # noqa: S311 (no secret)
        believed = self._believed()
        return DeviceCertificate(
            device_id, signed.serial, signed.pem, believed, renew_after, lifetime
        )
