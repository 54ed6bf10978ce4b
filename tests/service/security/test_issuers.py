"""Which certificates a server takes, by the authority that signed them. All over real TLS."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import UnrecognizedExtension
from cryptography.x509.oid import ExtensionOID, NameOID

from hfmds.errors import ConfigurationError, NotAllowed, Unavailable
from hfmds.pki.authority import Authority, KeyPair, key_pem, new_key
from hfmds.service.client.channel import Peer, call, open_channel, translating
from hfmds.service.security.access import ANYONE
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.issuers import Issuers
from hfmds.service.security.tls import TlsFiles
from tests.service.loopback import Stub, running
from tests.support.fleet_certificates import (
    DAY,
    LOCAL,
    FleetCertificates,
    chained,
    of_unknown_version,
    signed,
)

CAMERA = Identity(Kind.DEVICE, "camera")
STORE = Identity(Kind.SERVICE, "store")
OWNER = Identity(Kind.OWNER, "mallory")
SERVER = Identity(Kind.SERVICE, "tester")
ADMINS = (Kind.OWNER, Kind.OPERATOR, Kind.VIEWER)


async def ask(server: TlsFiles, caller: TlsFiles) -> bytes:
    """Call a method that is for every party of the fleet."""
    async with running(tls=server, access={"Unary": ANYONE}) as probe:
        peer = Peer("tester", probe.server.address, "HFMDS_TESTER", caller)
        channel = open_channel(peer)
        try:
            answer: bytes = await call(peer, Stub(channel).unary, b"hello", timeout_seconds=60)
            return answer
        finally:
            await channel.close()


def issuer_of(fleet: FleetCertificates, own: Identity) -> KeyPair:
    return fleet.issuer_pair if own.kind is Kind.DEVICE else fleet.service_issuer_pair


def subject(pair: KeyPair) -> x509.Name:
    return x509.load_pem_x509_certificate(pair.certificate).subject


def without_unit(name: x509.Name) -> x509.Name:
    unit = NameOID.ORGANIZATIONAL_UNIT_NAME
    return x509.Name(part for part in name if part.oid != unit)


@pytest.mark.parametrize("own", [CAMERA, STORE], ids=str)
async def test_an_issuer_makes_parties_of_its_kind(fleet: FleetCertificates, own: Identity) -> None:
    issuer = fleet.issuer if own is CAMERA else fleet.service_issuer
    assert await ask(fleet.of(SERVER), fleet.of(own, issuer)) == b"hello"


@pytest.mark.parametrize("kind", Kind)
async def test_the_authority_makes_parties_of_every_kind(
    fleet: FleetCertificates, kind: Kind
) -> None:
    assert await ask(fleet.of(SERVER), fleet.of(Identity(kind, "anna"))) == b"hello"


@pytest.mark.parametrize("kind", [*ADMINS, Kind.SERVICE])
async def test_the_device_issuer_makes_no_other_kind(fleet: FleetCertificates, kind: Kind) -> None:
    with pytest.raises(NotAllowed):
        await ask(fleet.of(SERVER), fleet.of(Identity(kind, "mallory"), fleet.issuer))


@pytest.mark.parametrize("kind", [*ADMINS, Kind.DEVICE])
async def test_the_service_issuer_makes_no_other_kind(fleet: FleetCertificates, kind: Kind) -> None:
    with pytest.raises(NotAllowed):
        await ask(fleet.of(SERVER), fleet.of(Identity(kind, "mallory"), fleet.service_issuer))


@pytest.mark.parametrize("leaf", [OWNER, STORE, CAMERA], ids=str)
@pytest.mark.parametrize("own", [CAMERA, STORE], ids=lambda own: f"signed-by-{own.kind.value}-key")
@pytest.mark.parametrize(
    "rename",
    [
        lambda _, own: own,
        lambda _, own: without_unit(own),
        lambda authority, _: authority,
        lambda *_: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "unheard of")]),
    ],
    ids=["with-unit", "without-unit", "as-the-authority", "another-name"],
)
async def test_nobody_gets_in_by_an_intermediate_authority(
    fleet: FleetCertificates, rename: object, own: Identity, leaf: Identity
) -> None:
    signer = issuer_of(fleet, own)
    authority = x509.load_pem_x509_certificate(fleet.authority.certificate).subject
    name = rename(authority, subject(signer))  # type: ignore[operator]
    caller = fleet.files("mallory", chained(signer, name, leaf))
    # TLS refuses some of these chains in the handshake. The server must refuse the others.
    with pytest.raises((NotAllowed, Unavailable)):
        await ask(fleet.of(SERVER), caller)


async def test_nobody_gets_in_by_an_authority_of_the_same_name(fleet: FleetCertificates) -> None:
    impostor, _ = Authority.create("tests", datetime.now(UTC), 10 * DAY)
    pair = impostor.pair(OWNER, datetime.now(UTC), DAY)
    with_root = KeyPair(pair.key, pair.certificate + impostor.certificate)
    for presented in (pair, with_root):
        with pytest.raises(Unavailable):
            await ask(fleet.of(SERVER), fleet.files("mallory", presented))


@pytest.mark.parametrize("spell", [str.upper, str.title, lambda unit: f" {unit}\t"])
@pytest.mark.parametrize("own", [CAMERA, STORE], ids=str)
async def test_nobody_gets_in_by_an_issuer_whose_name_is_misspelt(
    fleet: FleetCertificates, own: Identity, spell: object
) -> None:
    """TLS takes names for the same that differ in case or in white space."""
    stolen = issuer_of(fleet, own)
    unit = NameOID.ORGANIZATIONAL_UNIT_NAME
    name = x509.Name(
        x509.NameAttribute(part.oid, spell(part.value) if part.oid == unit else part.value)  # type: ignore[operator]
        for part in subject(stolen)
    )
    key = load_pem_private_key(stolen.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = signed(stolen, name, key.public_key(), datetime.now(UTC) + DAY)
    thief = Authority(KeyPair(stolen.key, certificate.public_bytes(Encoding.PEM)))
    with pytest.raises(NotAllowed):
        await ask(fleet.of(SERVER), fleet.of(OWNER, thief, hosts=()))


async def test_nobody_gets_in_by_an_issuer_that_has_expired(
    fleet: FleetCertificates, tmp_path: Path
) -> None:
    key = load_pem_private_key(fleet.issuer_pair.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    name, past = subject(fleet.issuer_pair), datetime.now(UTC) - DAY
    expired = signed(fleet.issuer_pair, name, key.public_key(), past).public_bytes(Encoding.PEM)
    server = fleet.of(SERVER)
    server.authority.write_bytes(fleet.authority.certificate + expired)
    with pytest.raises(Unavailable):
        await ask(server, fleet.of(CAMERA, fleet.issuer))


async def test_nobody_asks_for_health_by_an_intermediate_authority(
    fleet: FleetCertificates,
) -> None:
    name = without_unit(subject(fleet.issuer_pair))
    thief = fleet.files("thief", chained(fleet.issuer_pair, name, CAMERA))
    for caller, admitted in ((fleet.of(CAMERA), True), (thief, False)):
        async with running(tls=fleet.of(SERVER)) as probe:
            peer = Peer("tester", probe.server.address, "HFMDS_TESTER", caller)
            channel = open_channel(peer)
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                if admitted:
                    assert await check(b"")
                else:
                    with pytest.raises(NotAllowed), translating(peer):
                        await check(b"")
            finally:
                await channel.close()


async def test_callers_of_a_removed_issuer_are_refused_on_open_connections(
    fleet: FleetCertificates,
) -> None:
    server = fleet.of(SERVER)
    async with running(tls=server, access={"Unary": ANYONE}) as probe:
        caller = fleet.of(CAMERA, fleet.issuer)
        peer = Peer("tester", probe.server.address, "HFMDS_TESTER", caller)
        channel = open_channel(peer)
        try:
            assert await call(peer, Stub(channel).unary, b"hello", timeout_seconds=60)
            server.authority.write_bytes(fleet.authority.certificate)
            with pytest.raises(NotAllowed):
                await call(peer, Stub(channel).unary, b"hello", timeout_seconds=60)
            server.authority.write_bytes(fleet.bundle)
            assert await call(peer, Stub(channel).unary, b"hello", timeout_seconds=60)
        finally:
            await channel.close()


@pytest.mark.parametrize("rename", [lambda own: own, without_unit], ids=["with-unit", "without"])
async def test_nobody_believes_a_server_by_an_authority_of_the_device_issuer(
    fleet: FleetCertificates, rename: object
) -> None:
    name = rename(subject(fleet.issuer_pair))  # type: ignore[operator]
    server = fleet.files("pretender", chained(fleet.issuer_pair, name, SERVER, LOCAL))
    with pytest.raises(Unavailable):
        await ask(server, fleet.of(CAMERA))


# --- malformed certificates ---------------------------------------------------------------------


async def test_a_caller_whose_name_cannot_be_read_is_a_stranger(fleet: FleetCertificates) -> None:
    key, now = new_key(), datetime.now(UTC)
    signing_key = load_pem_private_key(fleet.issuer_pair.key, None)
    assert isinstance(signing_key, ec.EllipticCurvePrivateKey)
    x400_address = UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"0\2\xa3\0")
    builder = x509.CertificateBuilder(
        subject(fleet.issuer_pair), x509.Name([]), key.public_key(), 7, now - DAY, now + DAY
    )
    certificate = builder.add_extension(x400_address, critical=False).sign(signing_key, SHA256())
    pair = KeyPair(key_pem(key), certificate.public_bytes(Encoding.PEM))
    with pytest.raises(NotAllowed, match="names no device"):
        await ask(fleet.of(SERVER), fleet.files("odd", pair))


def test_a_malformed_certificate_of_a_caller_is_refused(fleet: FleetCertificates) -> None:
    camera = fleet.of(CAMERA).certificate.read_bytes()
    for pem in (of_unknown_version(camera), b"hello"):
        with pytest.raises(NotAllowed, match="malformed"):
            Issuers(fleet.of(SERVER)).certificate(pem)


def test_a_server_does_not_start_with_malformed_authorities(fleet: FleetCertificates) -> None:
    files = fleet.of(SERVER)
    for content in (of_unknown_version(fleet.authority.certificate), b"hello"):
        files.authority.write_bytes(content)
        with pytest.raises(ConfigurationError, match=files.authority.name):
            Issuers(files)
    files.authority.unlink()
    with pytest.raises(ConfigurationError, match=files.authority.name):
        Issuers(files)
