"""Certificates as this project reads them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from hfmds.errors import ConfigurationError
from hfmds.service.security.identity import Identity

MALFORMED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""The exceptions of `cryptography` for malformed certificates and requests."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of a party, or an admin token in its place."""

    identity: Identity | None  # None: it names no party that its issuer may make
    serial: str  # hex digits; of a token, its id
    begins: int  # seconds since 1970
    ends: int
    key_sha256: str = ""  # empty for a token


def key_sha256(key: PublicKeyTypes) -> str:
    """Return the name of a key: the SHA-256 of its SubjectPublicKeyInfo in DER, in hex.

    The name stays the same from one certificate to the next.
    """
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()


def certificate_from(certificate: x509.Certificate, identity: Identity | None) -> Certificate:
    """Describe a certificate that belongs to this party."""
    return Certificate(
        identity=identity,
        serial=f"{certificate.serial_number:x}",
        begins=int(certificate.not_valid_before_utc.timestamp()),
        ends=int(certificate.not_valid_after_utc.timestamp()),
        key_sha256=key_sha256(certificate.public_key()),
    )


def load_certificates(pem: bytes) -> list[x509.Certificate]:
    """Load one or more certificates; ConfigurationError if the file has others or none."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except MALFORMED as error:
        raise ConfigurationError(f"not certificates in PEM: {error}") from error


def read_own_certificate(pem: bytes) -> Certificate:
    """Read a certificate of this program; ConfigurationError if it is malformed.

    The result names no party: nobody checked the issuer.
    """
    own, *_chain = load_certificates(pem)
    try:
        return certificate_from(own, None)
    except MALFORMED as error:
        raise ConfigurationError(f"not a usable certificate: {error}") from error
