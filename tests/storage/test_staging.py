import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import CorruptData, InvalidInput, LimitExceeded, Unavailable, WrongState
from hfmds.storage.blobs import FolderBlobs, verify_blob
from hfmds.storage.staging import Staging

CONTENT = b"0123456789" * 10
DIGEST = digest_of(CONTENT)
OWNER = "task 7"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def staging(folder: Path) -> Staging:
    return Staging(folder, max_bytes=len(CONTENT))


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


def test_an_upload_in_pieces_becomes_a_blob(staging: Staging, blobs: FolderBlobs) -> None:
    assert staging.offset(OWNER, DIGEST) == 0
    assert staging.append(OWNER, DIGEST, 0, CONTENT[:30]) == 30
    assert staging.append(OWNER, DIGEST, 30, b"") == 30
    assert staging.append(OWNER, DIGEST, 30, CONTENT[30:]) == 100
    staging.commit(OWNER, DIGEST, blobs)
    verify_blob(blobs, DIGEST)
    assert staging.offset(OWNER, DIGEST) == 0


def test_an_upload_resumes_after_a_restart(
    staging: Staging, blobs: FolderBlobs, folder: Path
) -> None:
    staging.append(OWNER, DIGEST, 0, CONTENT[:30])
    restarted = Staging(folder, max_bytes=len(CONTENT))
    assert restarted.offset(OWNER, DIGEST) == 30
    restarted.append(OWNER, DIGEST, 30, CONTENT[30:])
    restarted.commit(OWNER, DIGEST, blobs)
    verify_blob(blobs, DIGEST)


def test_what_an_earlier_process_took_is_compared_too(
    staging: Staging, blobs: FolderBlobs, folder: Path
) -> None:
    staging.append(OWNER, DIGEST, 0, b"X" + CONTENT[1:30])
    restarted = Staging(folder, max_bytes=len(CONTENT))
    restarted.append(OWNER, DIGEST, 30, CONTENT[30:])
    with pytest.raises(CorruptData):
        restarted.commit(OWNER, DIGEST, blobs)
    assert not blobs.contains(DIGEST)


def test_several_senders_of_one_upload_do_not_deceive_it(
    staging: Staging, blobs: FolderBlobs
) -> None:
    def send(fill: bytes) -> None:
        for offset in range(0, 100, 10):
            piece = fill or CONTENT[offset : offset + 10]
            with suppress(WrongState):  # another one was quicker
                staging.append(OWNER, DIGEST, offset, piece)

    for _ in range(20):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(send, [b"", b"altered...", b"", b""]))
        rest = staging.offset(OWNER, DIGEST)
        staging.append(OWNER, DIGEST, rest, CONTENT[rest:])
        try:
            staging.commit(OWNER, DIGEST, blobs)
        except CorruptData:
            assert not blobs.contains(DIGEST)
        else:
            verify_blob(blobs, DIGEST)
            blobs.delete(DIGEST)


def test_an_empty_upload_can_be_committed(staging: Staging, blobs: FolderBlobs) -> None:
    empty = digest_of(b"")
    staging.commit(OWNER, empty, blobs)
    assert blobs.contains(empty)


@pytest.mark.parametrize("offset", [0, 29, 31])
def test_a_wrong_offset_is_refused_with_the_right_one(staging: Staging, offset: int) -> None:
    staging.append(OWNER, DIGEST, 0, CONTENT[:30])
    with pytest.raises(WrongState) as refusal:
        staging.append(OWNER, DIGEST, offset, CONTENT[30:40])
    assert str(refusal.value) == f"upload {DIGEST}: offset {offset} was sent, 30 is next"
    assert staging.offset(OWNER, DIGEST) == 30


def test_more_bytes_than_announced_are_refused(staging: Staging) -> None:
    staging.append(OWNER, DIGEST, 0, CONTENT[:90])
    with pytest.raises(InvalidInput) as refusal:
        staging.append(OWNER, DIGEST, 90, bytes(11))
    assert str(refusal.value) == f"upload {DIGEST}: 101 bytes were sent, 100 are announced"
    assert staging.offset(OWNER, DIGEST) == 90


def test_an_upload_above_the_limit_is_refused_before_its_first_byte(
    staging: Staging, folder: Path
) -> None:
    large = Digest(DIGEST.sha256, 101)
    with pytest.raises(LimitExceeded) as refusal:
        staging.append(OWNER, large, 0, b"x")
    assert str(refusal.value) == f"upload {large}: 101 bytes are announced, the limit is 100"
    assert list(folder.iterdir()) == []


def test_a_truncated_upload_is_not_taken_but_can_be_completed(
    staging: Staging, blobs: FolderBlobs
) -> None:
    staging.append(OWNER, DIGEST, 0, CONTENT[:99])
    with pytest.raises(WrongState) as refusal:
        staging.commit(OWNER, DIGEST, blobs)
    assert str(refusal.value) == (
        f"upload {DIGEST}: 99 of 100 bytes are here; send the rest from offset 99"
    )
    assert not blobs.contains(DIGEST)
    staging.append(OWNER, DIGEST, 99, CONTENT[99:])
    staging.commit(OWNER, DIGEST, blobs)
    verify_blob(blobs, DIGEST)


def test_an_altered_upload_is_refused_and_starts_again(
    staging: Staging, blobs: FolderBlobs
) -> None:
    altered = b"X" + CONTENT[1:]
    staging.append(OWNER, DIGEST, 0, altered)
    with pytest.raises(CorruptData) as refusal:
        staging.commit(OWNER, DIGEST, blobs)
    assert str(refusal.value) == (
        f"upload {DIGEST}: the bytes that came are {digest_of(altered)}; "
        f"send it again from offset 0"
    )
    assert not blobs.contains(DIGEST)
    assert staging.offset(OWNER, DIGEST) == 0
    staging.append(OWNER, DIGEST, 0, CONTENT)
    staging.commit(OWNER, DIGEST, blobs)
    verify_blob(blobs, DIGEST)


def test_a_repeated_commit_is_answered_as_the_first_time(
    staging: Staging, blobs: FolderBlobs
) -> None:
    staging.append(OWNER, DIGEST, 0, CONTENT)
    staging.commit(OWNER, DIGEST, blobs)
    staging.commit(OWNER, DIGEST, blobs)
    verify_blob(blobs, DIGEST)


def test_owners_do_not_disturb_each_other(
    staging: Staging, blobs: FolderBlobs, folder: Path
) -> None:
    for owner in ("task 1", "../../task 2", "task 3"):
        staging.append(owner, DIGEST, 0, CONTENT[:10])
    assert len(list(folder.iterdir())) == 3
    staging.append("task 1", DIGEST, 10, CONTENT[10:])
    staging.commit("task 1", DIGEST, blobs)
    assert staging.offset("../../task 2", DIGEST) == 10
    staging.commit("task 3", DIGEST, blobs)  # the content is here: nothing is left to send
    assert staging.offset("task 3", DIGEST) == 0


def test_only_stale_uploads_are_purged(staging: Staging, folder: Path) -> None:
    staging.append("old", DIGEST, 0, CONTENT[:10])
    (old,) = folder.iterdir()
    os.utime(old, (1000, 1000))
    staging.append("new", DIGEST, 0, CONTENT[:10])
    (new,) = set(folder.iterdir()) - {old}
    os.utime(new, (1090, 1090))
    assert staging.purge(older_than_seconds=100, now=1100) == 0
    assert staging.purge(older_than_seconds=99, now=1100) == 1
    assert staging.offset("old", DIGEST) == 0
    assert staging.offset("new", DIGEST) == 10


def test_an_upload_that_gets_bytes_at_last_is_not_purged(staging: Staging, folder: Path) -> None:
    staging.append("task", DIGEST, 0, CONTENT[:10])
    (path,) = folder.iterdir()
    os.utime(path, (1000, 1000))
    with staging._lock_of(path):  # as the one who writes the next bytes has it
        purging = threading.Thread(target=staging.purge, args=(99, 1100))
        purging.start()
        purging.join(0.2)  # who does not wait has removed it by then
        os.utime(path, (1100, 1100))
    purging.join()
    assert staging.offset("task", DIGEST) == 10


class _Away(FolderBlobs):
    """Blobs whose storage does not answer."""

    def put_file(self, digest: Digest, path: Path) -> None:
        raise Unavailable("the object store is away")


def test_a_complete_upload_need_not_be_sent_again_when_storage_is_back(
    staging: Staging, blobs: FolderBlobs, tmp_path: Path
) -> None:
    staging.append(OWNER, DIGEST, 0, CONTENT)
    with pytest.raises(Unavailable, match="away"):
        staging.commit(OWNER, DIGEST, _Away(tmp_path / "away"))
    assert staging.offset(OWNER, DIGEST) == len(CONTENT)
    staging.commit(OWNER, DIGEST, blobs)
    verify_blob(blobs, DIGEST)
    assert staging.offset(OWNER, DIGEST) == 0
