"""Certificates as this project reads them."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509

from hfmds.service.security.identity import Identity
from hfmds.service.security.public_keys import key_sha256


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of a party, or an admin token in its place."""

    identity: Identity | None  # None: it names no party that its issuer may make
    serial: str  # hex digits; of a token, its id
    begins: int  # seconds since 1970
    ends: int
    key_sha256: str = ""  # empty for a token


def certificate_from(certificate: x509.Certificate, identity: Identity | None) -> Certificate:
    """Describe a certificate that belongs to this party."""
    return Certificate(
        identity=identity,
        serial=f"{certificate.serial_number:x}",
        begins=int(certificate.not_valid_before_utc.timestamp()),
        ends=int(certificate.not_valid_after_utc.timestamp()),
        key_sha256=key_sha256(certificate.public_key()),
    )


def read_own_certificate(pem: bytes) -> Certificate:
    """Read a certificate of this program. The result names no party: nobody checked the issuer."""
    return certificate_from(x509.load_pem_x509_certificate(pem), None)
