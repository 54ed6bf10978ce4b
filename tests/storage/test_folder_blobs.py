import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hfmds.domain.digest import digest_of
from hfmds.errors import ConfigurationError, CorruptData, NotFound, Unavailable
from hfmds.storage.blobs import FolderBlobs, check_blobs, verify_blob
from tests.storage.blobs_suite import CONTENT, BlobsSuite
from tests.support.waiting import eventually


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


class TestFolderBlobs(BlobsSuite):
    pass


def test_an_altered_byte_is_noticed(blobs: FolderBlobs) -> None:
    digest = blobs.put_bytes(CONTENT)
    path = blobs.local_path(digest)
    path.write_bytes(b"X" + CONTENT[1:])
    with pytest.raises(CorruptData) as refusal:
        verify_blob(blobs, digest)
    found = digest_of(b"X" + CONTENT[1:])
    expected = f"blob {digest} has changed: {path} now holds {found}; delete it"
    assert str(refusal.value) == expected


def test_a_truncated_blob_is_missing_until_it_is_put_again(blobs: FolderBlobs) -> None:
    digest = blobs.put_bytes(CONTENT)
    os.truncate(blobs.local_path(digest), 10)
    assert not blobs.contains(digest)
    with pytest.raises(NotFound):
        verify_blob(blobs, digest)
    blobs.put_bytes(CONTENT)
    verify_blob(blobs, digest)


def test_a_blob_deleted_before_its_first_chunk_is_missing(blobs: FolderBlobs) -> None:
    digest = blobs.put_bytes(CONTENT)
    chunks = blobs.read(digest)
    blobs.delete(digest)
    with pytest.raises(NotFound):
        next(chunks)


def test_a_file_on_another_file_system_is_copied_in(blobs: FolderBlobs, tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm") / f"hfmds-test-{os.getpid()}"
    if not elsewhere.parent.is_dir() or elsewhere.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    elsewhere.write_bytes(CONTENT)
    blobs.put_file(digest_of(CONTENT), elsewhere)
    verify_blob(blobs, digest_of(CONTENT))
    assert not elsewhere.exists()
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []


def test_bytes_are_on_disk_before_their_name_and_that_before_the_answer(
    blobs: FolderBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digest_of(CONTENT)
    synced: list[tuple[str, bool]] = []  # what is made durable, and whether the blob is seen then

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
            synced.append((kind, (tmp_path / "blobs" / digest.sha256).exists()))
            sync(descriptor)

        return noted

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    blobs.put_bytes(CONTENT)
    assert synced == [("file", False), ("folder", True)]


def test_on_a_full_disk_nothing_of_a_blob_stays(
    blobs: FolderBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*place: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="no space left"):
        blobs.put_bytes(CONTENT)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


PUT_FOR_EVER = """
import os, sys
from pathlib import Path
from hfmds.domain.digest import digest_of
from hfmds.storage.blobs import FolderBlobs, check_blobs, verify_blob
blobs = FolderBlobs(Path(sys.argv[1]))
while True:
    data = os.urandom(4_000_000)
    if sys.argv[2] == "bytes":
        digest = blobs.put_bytes(data)
    else:
        path = Path(sys.argv[1]).parent / "upload"
        path.write_bytes(data)
        digest = digest_of(data)
        blobs.put_file(digest, path)
    print(digest.sha256, digest.size_bytes, flush=True)
"""


@pytest.mark.parametrize("put", ["bytes", "file"])
def test_a_killed_process_leaves_only_whole_blobs_and_all_it_acknowledged(
    tmp_path: Path, put: str
) -> None:
    folder = tmp_path / "blobs"
    acknowledged: set[str] = set()
    for milliseconds in (0, 3, 7, 11):
        process = subprocess.Popen(
            [sys.executable, "-c", PUT_FOR_EVER, str(folder), put],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline()]  # at least one blob is in
        time.sleep(milliseconds / 1000)  # and the kill hits the next at another point
        process.send_signal(signal.SIGKILL)
        lines += process.communicate(timeout=10)[0].splitlines()
        acknowledged |= {line.split()[0] for line in lines if line}
    survivors = FolderBlobs(folder)
    found = [digest_of(path.read_bytes()) for path in folder.iterdir() if path.is_file()]
    assert acknowledged <= {digest.sha256 for digest in found}
    for digest in found:
        verify_blob(survivors, digest)  # its name is its content


# The kernel kills the process at the millionth byte it writes to a file.
PUT_AND_DIE_HALF_WAY = """
import resource, signal, sys
from pathlib import Path
from hfmds.storage.blobs import FolderBlobs, check_blobs, verify_blob
blobs = FolderBlobs(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
blobs.put_bytes(bytes(4_000_000))
"""


def test_a_process_killed_in_mid_write_leaves_nothing_to_be_seen(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", PUT_AND_DIE_HALF_WAY, str(tmp_path)])
    assert killed.returncode == -signal.SIGXFSZ
    (half,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert half.stat().st_size == 1_000_000
    assert half.parent.name == "incoming"
    blobs = FolderBlobs(tmp_path)
    assert sum(blob.size_bytes for blob in blobs.digests()) == 0
    verify_blob(blobs, blobs.put_bytes(bytes(4_000_000)))


async def test_the_space_of_a_deleted_blob_becomes_free(blobs: FolderBlobs, tmp_path: Path) -> None:
    blobs.delete(blobs.put_bytes(CONTENT))
    await eventually(lambda: not [path for path in tmp_path.rglob("*") if path.is_file()])


def test_what_a_killed_process_deleted_is_cleared_at_the_next_start(
    blobs: FolderBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = blobs.put_bytes(CONTENT)
    with monkeypatch.context() as patch:  # as if the process died before it freed the space
        patch.setattr(Path, "unlink", lambda path, missing_ok: None)
        blobs.delete(digest)
        (hidden,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert not blobs.contains(digest)
    FolderBlobs(hidden.parent.parent)
    assert not hidden.exists()


def test_what_a_killed_process_left_is_cleared_an_hour_later(tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    fresh, stale = incoming / "fresh", incoming / "stale"
    for path in (fresh, stale):
        path.write_bytes(b"half a bl")
    os.utime(stale, (time.time() - 3700, time.time() - 3700))
    FolderBlobs(tmp_path)
    assert list(incoming.iterdir()) == [fresh]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "blobs"
    with pytest.raises(ConfigurationError) as refusal:
        FolderBlobs(folder)
    assert str(refusal.value) == (
        f"cannot keep data in {folder}/incoming (File exists: {tmp_path}/file); "
        f"set HFMDS_BLOBS_URL or HFMDS_DATA_DIR to a place this user can write to"
    )


def test_a_folder_that_is_gone_is_noticed(tmp_path: Path) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"
    blobs = FolderBlobs(disk / "blobs")
    check_blobs(blobs)
    disk.rename(away)
    with pytest.raises(FileNotFoundError, match="blobs"):
        check_blobs(blobs)
    (disk / "blobs").mkdir(parents=True)  # where the disk would be
    with pytest.raises(FileNotFoundError, match="blobs"):
        check_blobs(blobs)
    shutil.rmtree(disk)
    away.rename(disk)
    check_blobs(blobs)


def test_a_place_below_another_keeps_its_blobs_to_itself(tmp_path: Path) -> None:
    above, below = FolderBlobs(tmp_path / "blobs"), FolderBlobs(tmp_path / "blobs" / "run-1")
    outer, inner = above.put_bytes(b"above"), below.put_bytes(b"below")
    assert list(above.digests()) == [outer]
    assert list(below.digests()) == [inner]
