"""The content of a fleet's certificates, and their files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from hfmds.errors import ConfigurationError, Conflict, InvalidInput
from hfmds.pki.authority import CLOCKS_DIFFER, Authority, KeyPair, hosts_of, key_pem, new_key
from hfmds.pki.folder import (
    complete_authority,
    create_authority,
    issue_pair,
    open_authority,
    read_issuer,
    renew_pair,
)
from hfmds.service.security.certificates import key_sha256
from hfmds.service.security.exclusions import end_of_key
from hfmds.service.security.identity import Identity, Kind, identity_from
from hfmds.service.security.tls import TlsFiles
from tests.pki.reading import identity_in
from tests.support.fleet_certificates import of_unknown_version

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)
CAMERA = Identity(Kind.DEVICE, "camera-7")
END = b"-----END CERTIFICATE-----\n"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("tests", NOW, 10 * DAY)[0]


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_a_certificate_names_one_identity_and_ends(authority: Authority) -> None:
    pair = authority.pair(CAMERA, NOW, DAY)
    assert identity_in(pair.certificate) == CAMERA
    assert parsed(pair.certificate).not_valid_after_utc == NOW + DAY
    assert parsed(pair.certificate).not_valid_before_utc == NOW - CLOCKS_DIFFER
    parsed(pair.certificate).verify_directly_issued_by(parsed(authority.certificate))


def test_a_serial_number_names_the_key_of_its_certificate(authority: Authority) -> None:
    for _ in range(2):
        key = new_key().public_key()
        serials = {authority.issue(key, CAMERA, NOW, NOW + DAY).serial for _ in range(2)}
        assert len(serials) == 2
        assert {end_of_key(serial) for serial in serials} == {end_of_key(key_sha256(key))}
        assert all(len(serial) <= 40 for serial in serials)


def test_a_device_that_believes_in_1970_believes_services(authority: Authority) -> None:
    service = authority.pair(Identity(Kind.SERVICE, "coordinator"), NOW, DAY)
    for pem in (service.certificate, authority.certificate):
        assert parsed(pem).not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_key_is_not_shown_by_accident(authority: Authority) -> None:
    assert "PRIVATE KEY" not in repr(authority.pair(CAMERA, NOW, DAY))


def test_only_services_may_serve(authority: Authority) -> None:
    service = Identity(Kind.SERVICE, "coordinator")
    for identity, usages in ((CAMERA, 1), (service, 2)):
        certificate = parsed(
            authority.pair(identity, NOW, DAY, ["10.0.0.7", "c.example"]).certificate
        )
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert len(found) == usages
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["c.example"]
        assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://hfmds/device/",
        "spiffe://hfmds/device/a/b",
        "spiffe://hfmds/admin/olga",
        "spiffe://hfmds/admin/root/olga",
        "spiffe://else/device/a",
        "spiffe://hfmds/device/" + "a" * 129,
        "spiffe://hfmds/device/..%2F",
        "https://hfmds/device/a",
    ],
)
def test_other_names_are_nobody(uri: str) -> None:
    with pytest.raises(InvalidInput):
        identity_from(uri)


def test_every_identity_is_read_as_it_was_written() -> None:
    for kind in Kind:
        identity = Identity(kind, "a.b_c-9")
        assert identity_from(identity.uri) == identity


def test_files_are_kept_from_others_and_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    authority = create_authority(folder, "tests", NOW, 10 * DAY)
    certificate = issue_pair(folder, authority, CAMERA, NOW, DAY)
    assert certificate == folder / "device-camera-7.crt"
    assert stat.S_IMODE(certificate.with_suffix(".key").stat().st_mode) == 0o600
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(Conflict, match=r"device-camera-7\.key exists"):
        issue_pair(folder, open_authority(folder), CAMERA, NOW, DAY)
    with pytest.raises(Conflict, match=r"authority\.crt exists"):
        create_authority(folder, "tests", NOW, DAY)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_whose_authority_keeps_its_key_elsewhere_gets_no_other(tmp_path: Path) -> None:
    create_authority(tmp_path, "tests", NOW, 10 * DAY)
    (tmp_path / "authority.key").rename(tmp_path / "in-the-safe")
    with pytest.raises(Conflict, match=r"authority\.crt exists"):
        create_authority(tmp_path, "tests", NOW, 10 * DAY)
    assert not (tmp_path / "authority.key").exists()


def test_what_is_renewed_keeps_its_names_and_takes_the_old_ones_place(tmp_path: Path) -> None:
    authority = create_authority(tmp_path, "tests", NOW, 100 * DAY)
    service, hosts = Identity(Kind.SERVICE, "coordinator"), ["c.example", "10.0.0.7"]
    certificate = issue_pair(tmp_path, authority, service, NOW, DAY, hosts)
    key = certificate.with_suffix(".key")
    (tmp_path / ".service-coordinator.key.new").write_text("of one that was killed")
    old, names = key.read_bytes(), {path.name for path in tmp_path.iterdir()}
    assert renew_pair(tmp_path, authority, service, NOW + DAY, 2 * DAY) == certificate
    TlsFiles(certificate, key, tmp_path / "authority.crt").read()
    assert key.read_bytes() != old
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert parsed(certificate.read_bytes()).not_valid_after_utc == NOW + 3 * DAY
    assert identity_in(certificate.read_bytes()) == service
    assert hosts_of(certificate.read_bytes()) == hosts
    assert names - {path.name for path in tmp_path.iterdir()} == {".service-coordinator.key.new"}
    renew_pair(tmp_path, authority, service, NOW, DAY, ["other.example"])
    assert hosts_of(certificate.read_bytes()) == ["other.example"]


def test_keys_and_certificates_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    authority = create_authority(tmp_path, "tests", NOW, 10 * DAY)
    folder = tmp_path.name
    assert synced[:4] == ["authority.key", folder, "authority.crt", folder]
    issue_pair(tmp_path, authority, CAMERA, NOW, DAY)
    synced.clear()
    renew_pair(tmp_path, authority, CAMERA, NOW, DAY)
    for name in ("device-camera-7.key", "device-camera-7.crt"):  # its bytes, then its name
        assert synced[:3] == [f".{name}.new", folder, folder]
        del synced[:3]
    assert synced == []


def test_what_is_not_there_cannot_be_renewed(tmp_path: Path) -> None:
    authority = create_authority(tmp_path, "tests", NOW, 10 * DAY)
    with pytest.raises(ConfigurationError, match=r"device-camera-7\.crt"):
        renew_pair(tmp_path, authority, CAMERA, NOW, DAY)


def test_a_folder_without_an_authority_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="hfmds pki init"):
        open_authority(tmp_path)


def test_an_authority_whose_key_is_elsewhere_is_not_made_anew(tmp_path: Path) -> None:
    create_authority(tmp_path, "tests", NOW, 10 * DAY)
    (tmp_path / "authority.key").unlink()
    with pytest.raises(ConfigurationError, match=r"put authority\.key there") as refusal:
        open_authority(tmp_path)
    assert "pki init" not in str(refusal.value)


def test_a_key_that_is_not_the_authoritys_is_refused(authority: Authority) -> None:
    with pytest.raises(ConfigurationError, match="not that of its certificate"):
        Authority(KeyPair(key_pem(new_key()), authority.certificate))


# --- the device issuer --------------------------------------------------------------------------


def test_a_fleet_has_an_issuer_for_devices_alone(tmp_path: Path) -> None:
    create_authority(tmp_path, "tests", NOW, 10 * DAY)
    bundle = (tmp_path / "authority.crt").read_bytes()
    issuer = read_issuer(tmp_path / "device-issuer.crt", tmp_path / "device-issuer.key", bundle)
    assert issuer.signs_devices_only
    assert not open_authority(tmp_path).signs_devices_only
    believed = x509.load_pem_x509_certificates(bundle)
    assert believed == [
        parsed(open_authority(tmp_path).certificate),
        parsed(issuer.certificate),
        parsed((tmp_path / "service-issuer.crt").read_bytes()),
    ]
    usage = believed[1].extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_an_authority_that_could_make_admins_is_no_issuer(tmp_path: Path) -> None:
    create_authority(tmp_path, "tests", NOW, 10 * DAY)
    bundle = (tmp_path / "authority.crt").read_bytes()
    with pytest.raises(ConfigurationError, match="not a device issuer's"):
        read_issuer(tmp_path / "authority.crt", tmp_path / "authority.key", bundle)
    with pytest.raises(ConfigurationError, match="HFMDS_ISSUER_CERTIFICATE"):
        read_issuer(tmp_path / "nothing.crt", tmp_path / "authority.key", bundle)
    (tmp_path / "broken.crt").write_text("hello")
    with pytest.raises(ConfigurationError, match=r"broken\.crt.*not an auth"):
        read_issuer(tmp_path / "broken.crt", tmp_path / "authority.key", bundle)


def test_an_issuer_that_nobody_would_believe_is_refused(
    tmp_path: Path, authority: Authority
) -> None:
    create_authority(tmp_path, "tests", NOW, 10 * DAY)
    files = tmp_path / "device-issuer.crt", tmp_path / "device-issuer.key"
    with pytest.raises(ConfigurationError, match="HFMDS_TLS_AUTHORITY"):
        read_issuer(*files, authority.certificate)


# --- malformed files ----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [of_unknown_version, lambda _: b"hello"])
def test_a_malformed_certificate_is_refused_with_the_name_of_its_file(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    authority = create_authority(tmp_path, "tests", NOW, 10 * DAY)
    camera = issue_pair(tmp_path, authority, CAMERA, NOW, DAY)
    for name in ("authority", "device-issuer", camera.stem):
        path = tmp_path / f"{name}.crt"
        path.write_bytes(damage(path.read_bytes().partition(b"-----END")[0] + END))
    issuer = tmp_path / "device-issuer.crt", tmp_path / "device-issuer.key"
    for name, use in (
        ("authority", lambda: open_authority(tmp_path)),
        ("authority", lambda: complete_authority(tmp_path, "tests", NOW, DAY)),
        ("device-issuer", lambda: read_issuer(*issuer, authority.certificate)),
        (camera.stem, lambda: renew_pair(tmp_path, authority, CAMERA, NOW, DAY)),
        ("HFMDS_TLS_AUTHORITY", lambda: believed_by_nobody(tmp_path)),
    ):
        with pytest.raises(ConfigurationError, match=name):
            use()


def believed_by_nobody(folder: Path) -> None:
    create_authority(folder / "other", "tests", NOW, DAY)
    issuer = folder / "other" / "device-issuer.crt", folder / "other" / "device-issuer.key"
    read_issuer(*issuer, (folder / "authority.crt").read_bytes())
