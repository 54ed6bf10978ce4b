"""`hfmds pki`: files that programs and people can use immediately."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from typer.testing import CliRunner

from hfmds.cli.app import app
from hfmds.errors import Conflict, InvalidInput
from hfmds.pki.authority import hosts_of
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from tests.pki.reading import identity_in

REPOSITORY = Path(__file__).parents[3]


def hfmds(*arguments: str) -> None:
    CliRunner().invoke(app, ["pki", *arguments], catch_exceptions=False)


def test_a_fleet_is_set_up_by_two_commands(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    hfmds("init", "--folder", str(folder), "--host", "c.example")
    hfmds("issue", "device", "camera-7", "--folder", str(folder))
    hfmds("issue", "viewer", "olga", "--folder", str(folder), "--days", "1")
    issuers = {"authority.crt", "device-issuer.crt", "service-issuer.crt"}
    parties = [path for path in folder.glob("*.crt") if path.name not in issuers]
    identities = {path.name: identity_in(path.read_bytes()) for path in parties}
    assert identities == {
        "service-coordinator.crt": Identity(Kind.SERVICE, "coordinator"),
        "service-synthesis-store.crt": Identity(Kind.SERVICE, "synthesis-store"),
        "admin-owner-admin.crt": Identity(Kind.OWNER, "admin"),
        "device-camera-7.crt": Identity(Kind.DEVICE, "camera-7"),
        "admin-viewer-olga.crt": Identity(Kind.VIEWER, "olga"),
    }
    for name in identities:
        certificate = folder / name
        TlsFiles(certificate, certificate.with_suffix(".key"), folder / "authority.crt").read()


def test_a_malformed_name_is_refused(tmp_path: Path) -> None:
    hfmds("init", "--folder", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"\.\./camera"):
        hfmds("issue", "device", "../camera", "--folder", str(tmp_path))


@pytest.mark.parametrize("service", ["coordinator", "synthesis-store"])
def test_a_service_certificate_always_names_its_service(tmp_path: Path, service: str) -> None:
    hfmds("init", "--folder", str(tmp_path))
    certificates = (tmp_path / f"service-{service}.crt", tmp_path / "service-other.crt")
    hfmds("issue", "service", "other", "--folder", str(tmp_path))
    for certificate, name in zip(certificates, (service, "other"), strict=True):
        assert hosts_of(certificate.read_bytes()) == ["localhost", name, "127.0.0.1"]


def test_the_command_of_the_runbook_renews_a_certificate(tmp_path: Path) -> None:
    runbook = (REPOSITORY / "docs/runbooks.md").read_text().partition("## Certificate expiring")[2]
    (command,) = re.findall(r"^    hfmds pki (renew .*?) *(?:#|$)", runbook, re.MULTILINE)
    hfmds("init", "--folder", str(tmp_path), "--host", "c.example", "--days", "2")
    certificate = tmp_path / "service-coordinator.crt"
    before = certificate.read_bytes()
    hfmds(*command.split(), "--folder", str(tmp_path))
    after = certificate.read_bytes()
    assert hosts_of(after) == hosts_of(before) == ["c.example"]
    ends = [x509.load_pem_x509_certificate(pem).not_valid_after_utc for pem in (before, after)]
    assert ends[1] - ends[0] > timedelta(days=300)
    TlsFiles(certificate, certificate.with_suffix(".key"), tmp_path / "authority.crt").read()


def test_a_folder_without_an_issuer_gets_one(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    hfmds("init", "--folder", str(folder))
    believed = folder / "authority.crt"
    first_two = x509.load_pem_x509_certificates(believed.read_bytes())[:2]
    believed.write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in first_two))
    for name in ("service-issuer.crt", "service-issuer.key"):
        (folder / name).unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    hfmds("init", "--folder", str(folder))
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after.keys() - before.keys() == {"service-issuer.crt", "service-issuer.key"}
    assert [name for name, content in before.items() if after[name] != content] == [believed.name]
    issuer = x509.load_pem_x509_certificate(after["service-issuer.crt"])
    assert x509.load_pem_x509_certificates(believed.read_bytes()) == [*first_two, issuer]
    believed.write_bytes(before[believed.name])  # as after a kill in between
    hfmds("init", "--folder", str(folder))
    assert believed.read_bytes() == after[believed.name]
    (folder / "service-issuer.crt").unlink()  # moved to the coordinator
    with pytest.raises(Conflict, match=r"authority\.crt exists"):
        hfmds("init", "--folder", str(folder))
