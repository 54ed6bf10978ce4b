"""`hfmds pki`: files that programs and people can use at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hfmds.cli.app import app
from hfmds.errors import InvalidInput
from hfmds.service.identity import Identity, Kind
from hfmds.service.tls import TlsFiles
from tests.pki.reading import identity_in


def hfmds(*arguments: str) -> None:
    CliRunner().invoke(app, ["pki", *arguments], catch_exceptions=False)


def test_a_fleet_is_set_up_by_two_commands(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    hfmds("init", "--folder", str(folder), "--host", "c.example")
    hfmds("issue", "device", "camera-7", "--folder", str(folder))
    hfmds("issue", "viewer", "olga", "--folder", str(folder), "--days", "1")
    authorities = {folder / "authority.crt", folder / "device-issuer.crt"}
    parties = set(folder.glob("*.crt")) - authorities
    made = {path.name: identity_in(path.read_bytes()) for path in parties}
    assert made == {
        "service-coordinator.crt": Identity(Kind.SERVICE, "coordinator"),
        "service-synthesis-store.crt": Identity(Kind.SERVICE, "synthesis-store"),
        "admin-owner-admin.crt": Identity(Kind.OWNER, "admin"),
        "device-camera-7.crt": Identity(Kind.DEVICE, "camera-7"),
        "admin-viewer-olga.crt": Identity(Kind.VIEWER, "olga"),
    }
    for name in made:
        certificate = folder / name
        TlsFiles(certificate, certificate.with_suffix(".key"), folder / "authority.crt").read()


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    hfmds("init", "--folder", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"\.\./camera"):
        hfmds("issue", "device", "../camera", "--folder", str(tmp_path))
