"""The fleet's certificate authorities, which sign certificates that name identities.

The authority signs for every kind of party. Its key stays away from all programs. Two issuers sign
where a program has to:

- The coordinator has the device issuer. Servers accept only devices from it, and callers accept no
  server's certificate from it.
- cert-manager has the service issuer in a cluster. Servers accept only services from it.

This module knows no files and no gRPC.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hfmds.errors import ConfigurationError
from hfmds.service.security.certificates import MALFORMED, key_sha256, load_certificates
from hfmds.service.security.exclusions import KEY_DIGITS, end_of_key
from hfmds.service.security.identity import DEVICES_UNIT, SERVICES_UNIT, Identity, Kind, may_sign

# A device without a battery may believe that it is 1970, and must still accept servers. The clocks
# of servers differ by seconds.
_ANY_CLOCK = datetime(1970, 1, 1, tzinfo=UTC)
CLOCKS_DIFFER = timedelta(minutes=5)
_COMMON_NAME_CHARACTERS = 64  # the limit of X.509
_ALL_HOSTS = [
    x509.DNSName(""),
    x509.IPAddress(ipaddress.ip_network("0.0.0.0/0")),
    x509.IPAddress(ipaddress.ip_network("::/0")),
]
_NONE: Mapping[x509.ExtensionType, bool] = {}


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate, PEM."""

    key: bytes = field(repr=False)  # a secret
    certificate: bytes


@dataclass(frozen=True, slots=True)
class SignedCertificate:
    """A new certificate."""

    pem: bytes
    serial: str  # hex digits


class Authority:
    """Signs certificates of one fleet."""

    def __init__(self, pair: KeyPair) -> None:
        """Load the key and certificate; ConfigurationError if they are not an authority's."""
        try:
            key = serialization.load_pem_private_key(pair.key, password=None)
            certificate = x509.load_pem_x509_certificate(pair.certificate)
            public_key = certificate.public_key()
        except MALFORMED as error:
            raise ConfigurationError(f"not an authority's key and certificate: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError("the authority's key must be one on an elliptic curve")
        if key.public_key() != public_key:
            raise ConfigurationError("the authority's key is not that of its certificate")
        self._key = key
        self._certificate = certificate
        self.certificate = pair.certificate

    @classmethod
    def create(cls, fleet: str, now: datetime, lifetime: timedelta) -> tuple[Authority, KeyPair]:
        """Create an authority, and its key pair to store."""
        return cls._create(_name(f"HFMDS-FL authority of {fleet}"), now, lifetime)

    @classmethod
    def create_issuer(
        cls, fleet: str, now: datetime, lifetime: timedelta
    ) -> tuple[Authority, KeyPair]:
        """Create an issuer for devices only, and its key pair to store."""
        name = _name(f"HFMDS-FL device issuer of {fleet}", DEVICES_UNIT)
        # Some libraries check the usage, others the names. Both exclude certificates of hosts.
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        no_host = x509.NameConstraints(permitted_subtrees=None, excluded_subtrees=_ALL_HOSTS)
        return cls._create(name, now, lifetime, {usage: False, no_host: True})

    @classmethod
    def create_service_issuer(
        cls, fleet: str, now: datetime, lifetime: timedelta
    ) -> tuple[Authority, KeyPair]:
        """Create an issuer for services only, and its key pair to store."""
        return cls._create(
            _name(f"HFMDS-FL service issuer of {fleet}", SERVICES_UNIT), now, lifetime
        )

    @classmethod
    def _create(
        cls,
        name: x509.Name,
        now: datetime,
        lifetime: timedelta,
        further: Mapping[x509.ExtensionType, bool] = _NONE,  # with whether each one is critical
    ) -> tuple[Authority, KeyPair]:
        key = new_key()
        builder = (
            _builder(name, name, key.public_key(), _ANY_CLOCK, now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        for extension, critical in further.items():
            builder = builder.add_extension(extension, critical=critical)
        certificate = builder.sign(key, hashes.SHA256())
        pair = KeyPair(key_pem(key), certificate.public_bytes(serialization.Encoding.PEM))
        return cls(pair), pair

    @property
    def signs_devices_only(self) -> bool:
        """Whether servers accept only devices from this authority."""
        units = [str(unit) for unit in _units(self._certificate)]
        return [kind for kind in Kind if may_sign(units, kind)] == [Kind.DEVICE]

    def is_believed_by(self, believed: bytes) -> bool:
        """Return whether its certificate is among these, PEM."""
        return self._certificate in load_certificates(believed)

    @property
    def ends(self) -> datetime:
        """The end of everything that this authority signed."""
        return self._certificate.not_valid_after_utc

    def pair(
        self, identity: Identity, now: datetime, lifetime: timedelta, hosts: Sequence[str] = ()
    ) -> KeyPair:
        """Make a new key and its certificate."""
        key = new_key()
        begins = _ANY_CLOCK if identity.kind is Kind.SERVICE else now - CLOCKS_DIFFER
        signed = self.issue(key.public_key(), identity, begins, now + lifetime, hosts)
        return KeyPair(key_pem(key), signed.pem)

    def issue(
        self,
        key: ec.EllipticCurvePublicKey,
        identity: Identity,
        begins: datetime,
        ends: datetime,
        hosts: Sequence[str] = (),
    ) -> SignedCertificate:
        """Sign a certificate for a key."""
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.kind is Kind.SERVICE:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = [x509.UniformResourceIdentifier(identity.uri), *map(_host, hosts)]
        authority = self._certificate
        certificate = (
            _builder(_name(str(identity)), authority.subject, key, begins, ends)
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
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        return SignedCertificate(pem, f"{certificate.serial_number:x}")


def hosts_of(certificate: bytes) -> list[str]:
    """Return the host names and addresses in a certificate, PEM."""
    own, *_chain = load_certificates(certificate)
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*MALFORMED, x509.ExtensionNotFound) as error:
        raise ConfigurationError(f"a certificate with no readable names: {error}") from error
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def units_of(certificates: bytes) -> set[str | bytes]:
    """Return the organisational units of these certificates, PEM."""
    return {unit for certificate in load_certificates(certificates) for unit in _units(certificate)}


def _units(certificate: x509.Certificate) -> list[str | bytes]:
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return [unit.value for unit in units]


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a key of the kind that all parties have."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as PEM to store; a secret."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(_new_serial(key))
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _new_serial(key: ec.EllipticCurvePublicKey) -> int:
    """Return a random number that ends with the digits of the key (`Exclusions`)."""
    key_end = end_of_key(key_sha256(key))
    return secrets.randbits(159 - 4 * KEY_DIGITS) << 4 * KEY_DIGITS | int(key_end, 16)


def _name(text: str, unit: str = "") -> x509.Name:
    name = [x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME_CHARACTERS])]
    if unit:
        name.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name(name)


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
