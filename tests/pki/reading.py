"""Reads certificates for tests."""

from __future__ import annotations

from cryptography import x509

from hfmds.service.security.identity import Identity, identity_from


def identity_in(pem: bytes) -> Identity:
    """Return the identity that a certificate names."""
    certificate = x509.load_pem_x509_certificate(pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    return identity_from(uri)
