"""Identities of callers, by the authority that signed their certificates.

TLS accepts a chain through intermediate authorities, and it does not enforce the path length of an
authority that it trusts. The holder of an issuer's key can therefore sign an intermediate authority
of any name. So this module ignores the chain. It accepts a certificate only if the key of a
configured authority signed it directly, and that authority decides the kinds of identity.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from cachetools import LRUCache
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from hfmds.errors import InvalidInput
from hfmds.service.security.certificates import Certificate, certificate_from
from hfmds.service.security.identity import Identity, identity_from, may_sign

log = logging.getLogger(__name__)

_REMEMBERED_CERTIFICATES = 4096


class Issuers:
    """The authorities of the fleet, as the file that TLS believes has them now.

    Use it from one thread. It reads the file again when the file changes.
    """

    def __init__(self, authority: Path) -> None:
        """Take the authorities' certificates from this PEM file."""
        self._file = authority
        self._changed_at: int | None = None
        self._authorities: list[x509.Certificate] = []
        self._certificates: LRUCache[bytes, Certificate] = LRUCache(_REMEMBERED_CERTIFICATES)

    def certificate(self, pem: bytes) -> Certificate:
        """Read a caller's certificate, with the identity that its issuer may give it."""
        self._follow_file()
        certificate = self._certificates.get(pem)
        if certificate is None:
            certificate = self._check(x509.load_pem_x509_certificate(pem))
            self._certificates[pem] = certificate
        return certificate

    def _follow_file(self) -> None:
        try:
            changed_at = self._file.stat().st_mtime_ns
            if changed_at == self._changed_at:
                return
            self._authorities = x509.load_pem_x509_certificates(self._file.read_bytes())
        except (OSError, ValueError) as error:
            # Keep the last authorities. The TLS layer keeps them, too, and logs the cause.
            log.debug("cannot read the authorities in %s: %s", self._file, error)
            return
        self._changed_at = changed_at
        self._certificates.clear()

    def _check(self, certificate: x509.Certificate) -> Certificate:
        signers = [issuer for issuer in self._authorities if _signed_by(certificate, issuer)]
        if not signers:
            return certificate_from(certificate, None)
        described = certificate_from(certificate, _identity(certificate, signers))
        # A renewed authority is in the file twice, with one key and two ends.
        last_end = max(int(signer.not_valid_after_utc.timestamp()) for signer in signers)
        return replace(described, ends=min(described.ends, last_end))


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False  # another name, another kind of key, or another key
    return True


def _identity(certificate: x509.Certificate, signers: list[x509.Certificate]) -> Identity | None:
    """Return the identity in the certificate; None if one of the signers may not make it."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        identity = identity_from(uri)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError, InvalidInput):
        return None  # no name, several names, or a name of another fleet
    for signer in signers:
        units = signer.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        if not may_sign((str(unit.value) for unit in units), identity.kind):
            return None
    return identity
