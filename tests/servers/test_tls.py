"""TLS to the servers of components/tls-storage, with a private authority."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from hfmds.errors import ConfigurationError, Unavailable
from hfmds.pki.folder import create_authority, issue_pair
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles
from hfmds.storage.database import opened_database
from hfmds.storage.locations import open_location
from tests.k8s.conftest import MANIFESTS
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Server
from tests.support.tls_proxy import TlsProxy

pytestmark = pytest.mark.integration

DAY = timedelta(days=1)


def files_from_authority(folder: Path, *hosts: str) -> TlsFiles:
    now = datetime.now(UTC)
    authority = create_authority(folder, "tests", now, DAY)
    identity = Identity(Kind.SERVICE, "server")
    certificate = issue_pair(folder, authority, identity, now, DAY, hosts)
    return TlsFiles(certificate, certificate.with_suffix(".key"), folder / "authority.crt")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return files_from_authority(tmp_path_factory.mktemp("pki"), "localhost", "127.0.0.1")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that signed neither server's certificate."""
    return files_from_authority(tmp_path_factory.mktemp("others"), "localhost").authority


# --- PostgreSQL ---------------------------------------------------------------------------------


def checked(url: str, port: int, host: str, authority: Path) -> str:
    """Return the URL as k8s/README.md writes it."""
    where, _, options = url.rpartition("?")
    before, _, name = where.rpartition("/")
    credentials = before.rpartition("@")[0]
    checks = f"sslmode=verify-full&sslrootcert={authority}"
    return f"{credentials}@{host}:{port}/{name}?{options}&{checks}"


@pytest.fixture
def behind_tls(tls: TlsFiles, postgres_server: PostgresServer) -> Iterator[int]:
    with closing(TlsProxy(tls, postgres_server.port)) as server:
        yield server.port


def is_answered(url: str) -> bool:
    with opened_database(url) as engine, engine.connect() as connection:
        return bool(connection.exec_driver_sql("SELECT 1").scalar() == 1)


def test_the_database_is_reached_by_tls(behind_tls: int, tls: TlsFiles, postgres_url: str) -> None:
    assert is_answered(checked(postgres_url, behind_tls, "localhost", tls.authority))


def test_a_database_with_another_authority_gets_no_password(
    behind_tls: int, others: Path, postgres_url: str
) -> None:
    with pytest.raises(Unavailable, match="certificate verify failed"):
        is_answered(checked(postgres_url, behind_tls, "localhost", others))


def test_a_database_with_another_name_gets_no_password(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    files = files_from_authority(tmp_path, "somebody.example")
    with closing(TlsProxy(files, postgres_server.port)) as server:
        url = checked(postgres_url, server.port, "localhost", files.authority)
        with pytest.raises(Unavailable, match="does not match host name"):
            is_answered(url)


def test_a_database_without_tls_gets_no_password(
    postgres_server: PostgresServer, postgres_url: str, tls: TlsFiles
) -> None:
    url = checked(postgres_url, postgres_server.port, "127.0.0.1", tls.authority)
    with pytest.raises(Unavailable, match="server does not support SSL"):
        is_answered(url)


# --- S3 -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3(tls: TlsFiles) -> Iterator[S3Server]:
    server = S3Server(tls)
    with closing(server):
        server.start()
        yield server


def content_url(server: S3Server, authority: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the environment as components/tls-storage does; return the URL of the content."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    return server.new_place()


def test_content_is_reached_by_tls(
    s3: S3Server, tls: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = content_url(s3, tls.authority, monkeypatch)
    digest = open_location(url, tmp_path / "one", 1 << 30).place().put_bytes(b"content")
    copy = open_location(url, tmp_path / "other", 1 << 30).place()
    assert copy.local_path(digest).read_bytes() == b"content"


def test_a_store_with_another_authority_gets_no_content(
    s3: S3Server, others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = content_url(s3, others, monkeypatch)
    with pytest.raises((ConfigurationError, Unavailable)):
        open_location(url, tmp_path, 1 << 30)


def test_a_store_with_tls_refuses_plain_text(
    s3: S3Server, tls: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = content_url(s3, tls.authority, monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint.replace("https:", "http:"))
    with pytest.raises((ConfigurationError, Unavailable)):
        open_location(url, tmp_path, 1 << 30)


def test_the_manifests_set_the_tested_variables() -> None:
    component = yaml.safe_load(
        (MANIFESTS / "components/tls-storage/kustomization.yaml").read_text()
    )
    (patch,) = (
        patch_entry["patch"]
        for patch_entry in component["patches"]
        if patch_entry["target"]["name"] == "hfmds-s3"
    )
    values = {
        patch_entry["path"]: patch_entry.get("value") for patch_entry in yaml.safe_load(patch)
    }
    assert values["/data/AWS_ENDPOINT_URL"].startswith("https://")
    assert "/data/SSL_CERT_FILE" in values
