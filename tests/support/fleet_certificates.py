"""The authorities of a test fleet, and the certificate files of its parties."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from hfmds.pki.authority import Authority, KeyPair, key_pem, new_key
from hfmds.service.security.identity import Identity
from hfmds.service.security.tls import TlsFiles

DAY = timedelta(days=1)
LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class FleetCertificates:
    """The authority, both issuers, and a folder for the files of the parties."""

    folder: Path
    authority: Authority
    issuer: Authority
    issuer_pair: KeyPair
    service_issuer: Authority
    service_issuer_pair: KeyPair

    @classmethod
    def create(cls, folder: Path, now: datetime | None = None) -> FleetCertificates:
        now = now or datetime.now(UTC)
        authority, _ = Authority.create("tests", now, 10 * DAY)
        return cls(
            folder,
            authority,
            *Authority.create_issuer("tests", now, 10 * DAY),
            *Authority.create_service_issuer("tests", now, 10 * DAY),
        )

    @property
    def bundle(self) -> bytes:
        """Return the certificates that every program of the fleet believes."""
        authorities = (self.authority, self.issuer, self.service_issuer)
        return b"".join(authority.certificate for authority in authorities)

    def files(self, name: str, pair: KeyPair, bundle: bytes | None = None) -> TlsFiles:
        """Write a key pair and the believed authorities into files."""
        files = TlsFiles(*(self.folder / f"{name}.{kind}" for kind in ("crt", "key", "ca")))
        files.certificate.write_bytes(pair.certificate)
        files.key.write_bytes(pair.key)
        files.authority.write_bytes(bundle or self.bundle)
        return files

    def of(
        self,
        identity: Identity,
        signer: Authority | None = None,
        *,
        now: datetime | None = None,
        hosts: tuple[str, ...] = LOCAL,
    ) -> TlsFiles:
        """Write the files of a party. The authority signs, or `signer`."""
        signer = signer or self.authority
        hosts = () if signer is self.issuer else hosts  # the device issuer excludes all hosts
        pair = signer.pair(identity, now or datetime.now(UTC), DAY, hosts)
        return self.files(identity.uri.removeprefix("spiffe://hfmds/").replace("/", "-"), pair)


def chained(
    signer: KeyPair, name: x509.Name, leaf: Identity, hosts: tuple[str, ...] = ()
) -> KeyPair:
    """Sign an intermediate authority of this name and, under it, a certificate for `leaf`.

    This is what the holder of the signer's key can do with general tools.
    """
    now, key = datetime.now(UTC), new_key()
    intermediate = signed(signer, name, key.public_key(), now + DAY)
    pem = intermediate.public_bytes(Encoding.PEM)
    pair = Authority(KeyPair(key_pem(key), pem)).pair(leaf, now, DAY, hosts)
    return KeyPair(pair.key, pair.certificate + pem)


def signed(
    signer: KeyPair, name: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime
) -> x509.Certificate:
    """Sign an authority's certificate for a key, with no limit on what it may sign."""
    signing_key = load_pem_private_key(signer.key, None)
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(signer.certificate)
    builder = x509.CertificateBuilder(
        issuer.subject, name, key, x509.random_serial_number(), ends - 5 * DAY, ends
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(signing_key, hashes.SHA256())


def of_unknown_version(pem: bytes) -> bytes:
    """Return a certificate that says it has version 2, which `cryptography` does not read."""
    der = bytearray(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
    version = der.index(b"\xa0\x03\x02\x01\x02")
    der[version + 4] = 1
    return ssl.DER_cert_to_PEM_cert(bytes(der)).encode()
