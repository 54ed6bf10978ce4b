"""Identities of callers, by the authority that signed their certificates.

TLS accepts a chain through intermediate authorities, and it does not enforce the path length of an
authority that it trusts. The holder of an issuer's key can therefore sign an intermediate authority
of any name. So this module ignores the chain. It accepts a certificate only if the key of a
configured authority signed it directly, and that authority decides the kinds of identity.
"""

from __future__ import annotations

from dataclasses import replace

from cachetools import LRUCache
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from hfmds.errors import ConfigurationError, InvalidInput, NotAllowed
from hfmds.service.security.certificates import (
    MALFORMED,
    Certificate,
    certificate_from,
    load_certificates,
)
from hfmds.service.security.identity import Identity, identity_from, may_sign
from hfmds.service.security.tls import Rotation, TlsFiles

_REMEMBERED_CERTIFICATES = 4096


class Issuers:
    """The authorities of the fleet, as the file that TLS believes has them now.

    Use it from one thread. It reads the file again when the file changes.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Load the authorities; ConfigurationError if their file cannot be used."""
        self._authorities = Rotation(files, lambda: _authorities(files))
        self._certificates: LRUCache[bytes, Certificate] = LRUCache(_REMEMBERED_CERTIFICATES)

    def certificate(self, pem: bytes) -> Certificate:
        """Read a caller's certificate, with the identity that its issuer may give it.

        NotAllowed if the certificate is malformed: TLS libraries are less strict than this one.
        """
        if self._authorities.reload():
            self._certificates.clear()
        certificate = self._certificates.get(pem)
        if certificate is None:
            try:
                certificate = self._check(x509.load_pem_x509_certificate(pem))
            except MALFORMED as error:
                raise NotAllowed(f"the caller's certificate is malformed: {error}") from error
            self._certificates[pem] = certificate
        return certificate

    def _check(self, certificate: x509.Certificate) -> Certificate:
        authorities = self._authorities.current
        signers = [issuer for issuer in authorities if _signed_by(certificate, issuer)]
        if not signers:
            return certificate_from(certificate, None)
        described = certificate_from(certificate, _identity(certificate, signers))
        # A renewed authority is in the file twice, with one key and two ends.
        last_end = max(int(signer.not_valid_after_utc.timestamp()) for signer in signers)
        return replace(described, ends=min(described.ends, last_end))


def _authorities(files: TlsFiles) -> list[x509.Certificate]:
    try:
        return load_certificates(files.authority.read_bytes())
    except (OSError, ConfigurationError) as error:
        raise ConfigurationError(
            f"cannot read the authorities in {files.authority}: {error}; set HFMDS_TLS_AUTHORITY"
        ) from error


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*MALFORMED, InvalidSignature):
        return False  # another name, another kind of key, or another key
    return True


def _identity(certificate: x509.Certificate, signers: list[x509.Certificate]) -> Identity | None:
    """Return the identity in the certificate; None if one of the signers may not make it."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        identity = identity_from(uri)
    except (*MALFORMED, x509.ExtensionNotFound, InvalidInput):
        return None  # no name, several names, or a name of another fleet
    for signer in signers:
        units = signer.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        if not may_sign((str(unit.value) for unit in units), identity.kind):
            return None
    return identity
