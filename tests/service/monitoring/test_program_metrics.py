"""The metrics that every program has."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hfmds.pki.authority import Authority
from hfmds.service.monitoring.program_metrics import show_program, show_readiness, software_version
from hfmds.service.process.settings import ServerSettings
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
EXPIRY = "hfmds_tester_certificate_expiry_timestamp_seconds"


def test_version_and_process_are_told() -> None:
    registry = CollectorRegistry()
    show_program("tester", registry)
    labels = {"version": software_version()}
    assert registry.get_sample_value("hfmds_tester_build_info", labels) == 1
    assert (registry.get_sample_value("process_resident_memory_bytes") or 0) > 1e6
    assert EXPIRY.encode() not in generate_latest(registry)  # there is no TLS
    assert b"disk" not in generate_latest(registry)


def test_a_server_tells_whether_it_is_ready_as_it_is_at_the_scrape() -> None:
    registry = CollectorRegistry()
    reasons = ["starting", None, "the database has not answered for 21 s"]
    show_readiness("tester", registry, lambda: reasons.pop(0))
    shown = [registry.get_sample_value("hfmds_tester_ready") for _ in range(3)]
    assert shown == [0, 1, 0]


def test_a_replaced_certificate_shows_its_own_end(tmp_path: Path) -> None:
    authority = Authority.create("tests", NOON, timedelta(days=10))[0]

    def issued(days: int) -> bytes:
        identity = Identity(Kind.SERVICE, "store")
        lifetime = timedelta(days=days)
        return authority.pair(identity, now=NOON, lifetime=lifetime, hosts=()).certificate

    file = tmp_path / "own.crt"
    file.write_bytes(issued(1))
    registry = CollectorRegistry()
    show_program("tester", registry, TlsFiles(file, tmp_path / "own.key", tmp_path / "ca.crt"))
    assert registry.get_sample_value(EXPIRY) == (NOON + timedelta(days=1)).timestamp()

    file.write_bytes(issued(3))
    os.utime(file, (0, 0))  # a clock may be too coarse to tell the two apart
    assert registry.get_sample_value(EXPIRY) == (NOON + timedelta(days=3)).timestamp()

    file.write_bytes(b"half a certif")
    assert registry.get_sample_value(EXPIRY) == (NOON + timedelta(days=3)).timestamp()


def test_disks_are_told_by_place_and_one_that_is_gone_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    places = {"data": tmp_path, "content": tmp_path / "not mounted"}
    show_program("tester", registry, places=places)
    size = registry.get_sample_value("hfmds_tester_disk_size_bytes", {"place": "data"})
    free = registry.get_sample_value("hfmds_tester_disk_free_bytes", {"place": "data"})
    assert size is not None
    assert free is not None
    assert 0 < free < size
    assert registry.get_sample_value("hfmds_tester_disk_size_bytes", {"place": "content"}) is None
    assert "not mounted" in caplog.text


def test_content_has_a_place_unless_it_is_in_a_bucket(tmp_path: Path) -> None:
    folder = ServerSettings(data_dir=tmp_path)
    assert folder.disk_places == {"data": tmp_path, "content": tmp_path / "blobs"}
    elsewhere = ServerSettings(data_dir=tmp_path, blobs_url="file:///some%20where")
    assert elsewhere.disk_places["content"] == Path("/some where")
    bucket = ServerSettings(data_dir=tmp_path, blobs_url="s3://bucket/prefix")
    assert bucket.disk_places == {"data": tmp_path}
