"""Blobs in a real S3-compatible store."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import ConfigurationError, CorruptData, NotFound, Unavailable
from hfmds.storage.blobs import Blobs, check_blobs, verify_blob
from hfmds.storage.locations import BlobsLocation, open_location
from tests.storage.blobs_suite import CONTENT, BlobsSuite, content_of, file_with
from tests.support.s3 import BUCKET, S3Server

DIGEST = digest_of(CONTENT)
LARGE = 20 * 1024 * 1024 + 7  # three parts


@pytest.fixture
def location(s3_blobs_url: str, tmp_path: Path) -> BlobsLocation:
    return open_location(s3_blobs_url, tmp_path / "cache", 1 << 30)


@pytest.fixture
def blobs(location: BlobsLocation) -> Blobs:
    return location.place()


@pytest.fixture
def elsewhere(s3_blobs_url: str, tmp_path: Path) -> Blobs:
    """The same blobs as another machine sees them: without our copies."""
    return open_location(s3_blobs_url, tmp_path / "elsewhere", 1 << 30).place()


@pytest.fixture
def bucket(s3_blobs_url: str) -> S3Store:
    """The same place as others see it."""
    prefix = s3_blobs_url.removeprefix(f"s3://{BUCKET}/")
    return S3Store(BUCKET, prefix=prefix, client_options={"allow_http": True})


class TestObjectBlobs(BlobsSuite):
    pass


def test_copies_of_what_was_deleted_elsewhere_are_forgotten(
    blobs: Blobs, elsewhere: Blobs, tmp_path: Path
) -> None:
    gone, stays = blobs.put_bytes(CONTENT), blobs.put_bytes(b"stays")
    copy = blobs.local_path(gone)
    elsewhere.delete(gone)
    assert copy.exists()
    assert blobs.forget_deleted() == 1
    assert not copy.exists()
    assert blobs.local_path(stays).exists()
    with pytest.raises(NotFound):
        blobs.local_path(gone)
    assert blobs.forget_deleted() == 0


def test_what_is_put_here_can_be_read_elsewhere(
    blobs: Blobs, elsewhere: Blobs, tmp_path: Path
) -> None:
    digest = blobs.put_bytes(CONTENT)
    file = digest_of(b"from a file")
    blobs.put_file(file, file_with(tmp_path, b"from a file"))
    assert content_of(elsewhere, digest, offset=100) == CONTENT[100:]
    assert elsewhere.local_path(file).read_bytes() == b"from a file"
    verify_blob(elsewhere, digest)
    assert set(elsewhere.digests()) == {digest, file}


def test_places_do_not_know_each_others_blobs(location: BlobsLocation) -> None:
    here, there, above = location.place("run-1"), location.place("run-2"), location.place()
    here.put_bytes(CONTENT)
    there.put_bytes(b"other")
    assert not there.contains(DIGEST)
    assert not above.contains(DIGEST)
    assert list(here.digests()) == [DIGEST]
    assert list(above.digests()) == []
    there.delete(DIGEST)
    verify_blob(here, DIGEST)


def test_a_large_blob_goes_and_comes_in_parts(blobs: Blobs, elsewhere: Blobs) -> None:
    content = bytes(range(251)) * (LARGE // 251 + 1)
    digest = blobs.put_bytes(memoryview(content)[:LARGE])
    assert digest.size_bytes == LARGE
    assert digest_of(elsewhere.local_path(digest).read_bytes()) == digest


def test_more_blobs_than_a_page_of_the_listing(blobs: Blobs) -> None:
    contents = [str(number).encode() for number in range(1100)]
    with ThreadPoolExecutor(8) as threads:
        digests = set(threads.map(blobs.put_bytes, contents))
    assert len(digests) == 1100
    assert set(blobs.digests()) == digests


def test_a_copy_serves_when_the_store_does_not(blobs: Blobs, s3_server: S3Server) -> None:
    blobs.put_bytes(CONTENT)
    s3_server.stop()
    try:
        assert content_of(blobs, DIGEST) == CONTENT
        assert blobs.local_path(DIGEST).read_bytes() == CONTENT
        with pytest.raises(Unavailable):
            check_blobs(blobs)
    finally:
        s3_server.start()
    check_blobs(blobs)


def test_many_who_want_the_same_share_one_copy(blobs: Blobs, elsewhere: Blobs) -> None:
    blobs.put_bytes(CONTENT)
    with ThreadPoolExecutor(8) as threads:
        paths = set(threads.map(elsewhere.local_path, [DIGEST] * 32))
    assert len(paths) == 1
    assert paths.pop().read_bytes() == CONTENT


def test_an_altered_byte_is_noticed(
    blobs: Blobs, elsewhere: Blobs, bucket: S3Store, tmp_path: Path
) -> None:
    blobs.put_bytes(CONTENT)
    altered = b"X" + CONTENT[1:]
    obstore.put(bucket, DIGEST.sha256, altered)
    with pytest.raises(CorruptData, match=f"{DIGEST}.*{digest_of(altered)}; delete it"):
        elsewhere.local_path(DIGEST)
    assert list((tmp_path / "elsewhere" / "incoming").iterdir()) == []


def test_a_truncated_blob_is_missing_until_it_is_put_again(
    blobs: Blobs, bucket: S3Store, elsewhere: Blobs
) -> None:
    obstore.put(bucket, DIGEST.sha256, CONTENT[:10])
    assert not blobs.contains(DIGEST)
    with pytest.raises(NotFound):
        blobs.local_path(DIGEST)
    blobs.put_bytes(CONTENT)
    verify_blob(elsewhere, DIGEST)


def test_what_others_keep_there_is_no_blob(blobs: Blobs, bucket: S3Store) -> None:
    obstore.put(bucket, "notes.txt", b"mine")
    assert list(blobs.digests()) == []


def test_an_upload_that_could_not_be_kept_can_be_tried_again(
    blobs: Blobs, elsewhere: Blobs, s3_server: S3Server, tmp_path: Path
) -> None:
    path = file_with(tmp_path, CONTENT)
    s3_server.stop()
    try:
        for put in (lambda: blobs.put_bytes(b"other"), lambda: blobs.put_file(DIGEST, path)):
            with pytest.raises(Unavailable) as refusal:
                put()
            assert "HFMDS_BLOBS_URL" in str(refusal.value)
        with pytest.raises(Unavailable):
            list(blobs.digests())
    finally:
        s3_server.start()
    blobs.put_file(DIGEST, path)
    verify_blob(elsewhere, DIGEST)


def test_what_was_acknowledged_survives_the_death_of_the_store(
    blobs: Blobs, elsewhere: Blobs, s3_server: S3Server
) -> None:
    digests = [blobs.put_bytes(bytes([number]) * 1000) for number in range(10)]
    s3_server.restart()
    for digest in digests:
        verify_blob(elsewhere, digest)


MOVE_A_LARGE_BLOB = """
import resource, sys
from pathlib import Path
from hfmds.domain.digest import digest_of_file
from hfmds.storage.locations import open_location
url, folder = sys.argv[1], Path(sys.argv[2])
here = open_location(url, folder / "here", 1 << 30).place()
there = open_location(url, folder / "there", 1 << 30).place()
here.put_bytes(b"x"); there.local_path(next(there.digests()))  # all threads are started
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
path = folder / "large"
with path.open("wb") as file:
    for number in range(100):
        file.write(bytes([number]) * (1 << 20))
digest = digest_of_file(path)
here.put_file(digest, path)
assert sum(len(chunk) for chunk in there.read(digest)) == 100 << 20
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_blob(s3_blobs_url: str, tmp_path: Path) -> None:
    moved = subprocess.run(
        [sys.executable, "-c", MOVE_A_LARGE_BLOB, s3_blobs_url, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(moved.stdout) / 1024 < 80  # MiB, of a blob of 100; about 50 are in parts


# --- opening ------------------------------------------------------------------------------------


def refusal_of(url: str, folder: Path) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        open_location(url, folder / "cache", 1)
    return str(refusal.value)


def test_a_bucket_that_is_not_there_is_told(s3_blobs_url: str, tmp_path: Path) -> None:
    assert refusal_of("s3://no-such-bucket/x", tmp_path) == (
        "HFMDS_BLOBS_URL: there is no bucket 'no-such-bucket'; make it, or name another"
    )


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("AWS_SECRET_ACCESS_KEY", "SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"),
    ],
)
def test_a_wrong_key_is_told_and_hidden(
    s3_blobs_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    reason: str,
) -> None:
    monkeypatch.setenv(variable, "wrong-one")
    message = refusal_of(s3_blobs_url, tmp_path)
    assert message == (
        f"HFMDS_BLOBS_URL: {s3_blobs_url} may not be used with these keys ({reason}); check "
        f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that they may put, get, list and delete"
    )


def test_a_store_that_is_away_is_told(
    s3_blobs_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(Unavailable) as refusal:
        open_location(s3_blobs_url, tmp_path / "cache", 1)
    message = str(refusal.value)
    assert message.startswith(f"the object store {s3_blobs_url} does not work: ")
    assert "http://127.0.0.1:1/" in message
    assert message.endswith("HFMDS_BLOBS_URL, AWS_ENDPOINT_URL and AWS_ACCESS_KEY_ID are right")
    assert "hfmds-secret" not in message
    assert "\n" not in message


def test_a_missing_driver_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "hfmds.storage.object_blobs", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)  # what a missing package looks like
    assert refusal_of("s3://bucket", tmp_path) == (
        "HFMDS_BLOBS_URL asks for an object store, but its driver is missing "
        "(import of obstore halted; None in sys.modules); pip install obstore"
    )


def test_the_right_hash_with_the_wrong_size_is_not_deleted(blobs: Blobs, elsewhere: Blobs) -> None:
    blobs.put_bytes(CONTENT)
    blobs.delete(Digest(DIGEST.sha256, 1))
    verify_blob(elsewhere, DIGEST)
