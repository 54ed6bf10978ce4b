"""A fleet's certificate authority: makes certificates that name identities.

Certificates begin a day in the past: a device's clock may be slow. Knows no files and no gRPC.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hfmds.errors import ConfigurationError
from hfmds.service.identity import Identity, Kind

_SLOW_CLOCK = timedelta(days=1)
_COMMON_NAME_CHARACTERS = 64  # more is not a valid certificate


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate, PEM."""

    key: bytes
    certificate: bytes


class Authority:
    """Signs certificates of one fleet."""

    def __init__(self, pair: KeyPair) -> None:
        """From its own key and certificate; ConfigurationError if they are not an authority's."""
        try:
            key = serialization.load_pem_private_key(pair.key, password=None)
            certificate = x509.load_pem_x509_certificate(pair.certificate)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"not an authority's key and certificate: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError("the authority's key must be one on an elliptic curve")
        if key.public_key() != certificate.public_key():
            raise ConfigurationError("the authority's key is not that of its certificate")
        self._key = key
        self._certificate = certificate
        self.certificate = pair.certificate

    @classmethod
    def create(cls, fleet: str, now: datetime, lifetime: timedelta) -> tuple[Authority, KeyPair]:
        """A new authority, and what to keep of it."""
        key = new_key()
        name = _name(f"HFMDS-FL authority of {fleet}")
        certificate = (
            _builder(name, name, key.public_key(), now, lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        pair = KeyPair(key_pem(key), certificate.public_bytes(serialization.Encoding.PEM))
        return cls(pair), pair

    def pair(
        self, identity: Identity, now: datetime, lifetime: timedelta, hosts: Sequence[str] = ()
    ) -> KeyPair:
        """A new key with its certificate."""
        key = new_key()
        return KeyPair(key_pem(key), self._issue(key.public_key(), identity, now, lifetime, hosts))

    def _issue(
        self,
        key: ec.EllipticCurvePublicKey,
        identity: Identity,
        now: datetime,
        lifetime: timedelta,
        hosts: Sequence[str],
    ) -> bytes:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.kind is Kind.SERVICE:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = [x509.UniformResourceIdentifier(identity.uri), *map(_host, hosts)]
        authority = self._certificate
        certificate = (
            _builder(_name(str(identity)), authority.subject, key, now, lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key of the kind all parties have."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key to keep; a secret."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLOW_CLOCK)
        .not_valid_after(now + lifetime)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME_CHARACTERS])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
