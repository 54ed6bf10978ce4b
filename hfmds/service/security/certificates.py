"""What the certificate says that a caller came with; TLS has checked that it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from hfmds.errors import InvalidInput
from hfmds.service.security.identity import Identity, identity_from, may_make
from hfmds.service.security.public_keys import key_sha256

_REMEMBERED = 4096  # certificates of callers; to read one anew takes well below 1 ms


@dataclass(frozen=True, slots=True)
class Certificate:
    """A caller's certificate."""

    identity: Identity | None  # None: it names nobody of ours, or somebody it may not name
    serial: str  # hex digits
    begins: int  # seconds since 1970
    ends: int
    key_sha256: str = ""  # of its key; empty: it stands for a token


def certificate_of(context: grpc.aio.ServicerContext) -> Certificate | None:
    """The caller's; None if it came without."""
    found = context.auth_context().get("x509_pem_cert", ())
    return read_certificate(bytes(found[0])) if found else None


@lru_cache(_REMEMBERED)
def read_certificate(pem: bytes) -> Certificate:
    """What a certificate says. Whether it is believed, and still good, must be known already."""
    certificate = x509.load_pem_x509_certificate(pem)
    return Certificate(
        identity=_identity(certificate),
        serial=f"{certificate.serial_number:x}",
        begins=int(certificate.not_valid_before_utc.timestamp()),
        ends=int(certificate.not_valid_after_utc.timestamp()),
        key_sha256=key_sha256(certificate.public_key()),
    )


def _identity(certificate: x509.Certificate) -> Identity | None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        identity = identity_from(uri)
        units = certificate.issuer.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError, InvalidInput):
        return None  # no name, several of them, or another fleet's; or it cannot be read
    if not may_make((str(unit.value) for unit in units), identity.kind):
        return None  # whoever has the key of an issuer, which a program has, could make admins
    return identity
