"""Files of recycled blobs: written over if nobody has them, left alone if somebody does."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.storage import spares
from hfmds.storage.blobs import FolderBlobs

OLD, NEW = b"old" * 1000, b"new" * 1000

tells_of_readers = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no file is known to be free, and all are deleted"
)


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


def put(blobs: FolderBlobs, content: bytes) -> Digest:
    digest = digest_of(content)
    blobs.put_pieces(digest, [content])
    return digest


def inode(blobs: FolderBlobs, digest: Digest) -> int:
    return blobs.local_path(digest).stat().st_ino


def files(blobs: FolderBlobs) -> list[Path]:
    """What is there besides blobs."""
    return list(blobs.new_file().parent.iterdir())


@tells_of_readers
@pytest.mark.parametrize("content", [NEW, NEW[:7], NEW + NEW], ids=["same", "shorter", "longer"])
def test_a_recycled_file_is_written_over(blobs: FolderBlobs, content: bytes) -> None:
    old = put(blobs, OLD)
    file = inode(blobs, old)
    blobs.recycle([old])
    new = put(blobs, content)
    assert inode(blobs, new) == file
    assert blobs.local_path(new).read_bytes() == content
    assert files(blobs) == []


@contextmanager
def opened(path: Path) -> Iterator[Callable[[], bytes]]:
    with path.open("rb") as file:
        yield file.read


@contextmanager
def opened_by_another_process(path: Path) -> Iterator[Callable[[], bytes]]:
    reads_when_told = "import os, sys; sys.stdin.read(); os.write(1, os.pread(3, 1 << 20, 0))"
    command = ["bash", "-c", 'exec 3<"$0"; echo >&2; exec "$@"', path]
    with subprocess.Popen(
        [*command, sys.executable, "-c", reads_when_told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        process.stderr.read(1)  # it has the file
        yield lambda: process.communicate()[0]


@contextmanager
def named_twice(path: Path) -> Iterator[Callable[[], bytes]]:
    second = path.parent.parent / "second"
    second.hardlink_to(path)
    yield second.read_bytes


@pytest.mark.parametrize("used", [opened, opened_by_another_process, named_twice])
def test_who_still_has_a_recycled_file_reads_on(
    blobs: FolderBlobs, used: Callable[[Path], AbstractContextManager[Callable[[], bytes]]]
) -> None:
    old = put(blobs, OLD)
    with used(blobs.local_path(old)) as read:
        blobs.recycle([old])
        new = put(blobs, NEW)
        assert read() == OLD
    blobs.verify(new)
    assert files(blobs) == []


@tells_of_readers
def test_a_recycled_file_is_written_over_only_when_its_old_name_is_gone_for_good(
    blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync_folder, write_file = spares.sync_folder, os.pwritev
    monkeypatch.setattr(
        spares, "sync_folder", lambda folder: (steps.append("synced"), sync_folder(folder))
    )
    monkeypatch.setattr(os, "pwritev", lambda *a: (steps.append("written"), write_file(*a))[1])
    old = put(blobs, OLD)
    blobs.recycle([old])
    put(blobs, NEW)
    assert steps == ["written", "synced", "written"]


@tells_of_readers
def test_no_two_threads_write_over_one_file(blobs: FolderBlobs) -> None:
    for turn in range(10):
        old = [put(blobs, b"%d %d " % (turn, number) * 500) for number in range(8)]
        blobs.recycle(old)
        together = threading.Barrier(8)

        def put_one(content: bytes, together: threading.Barrier = together) -> Digest:
            together.wait()
            return put(blobs, content)

        contents = [b"%d %d new " % (turn, number) * 500 for number in range(8)]
        with ThreadPoolExecutor(8) as threads:
            for digest in threads.map(put_one, contents):
                blobs.verify(digest)
        assert files(blobs) == []


def test_only_so_many_files_are_kept(blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "_MOST_FILES", 3)
    old = [put(blobs, bytes([number]) * 1000) for number in range(6)]
    for first in (0, 2, 4):
        blobs.recycle(old[first : first + 2])
    assert not any(map(blobs.contains, old))
    assert len(files(blobs)) == 3


def test_no_large_file_is_kept(blobs: FolderBlobs) -> None:
    blobs.recycle([put(blobs, bytes((4 << 20) + 1)), put(blobs, OLD)])
    (small,) = files(blobs)
    assert small.stat().st_size == len(OLD)


@tells_of_readers
def test_a_file_that_cannot_be_looked_at_is_nobodys_next(
    blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.recycle([put(blobs, bytes([number]) * 1000) for number in range(3)])
    fails, open_file = iter([False, True]), os.open

    def too_many_open(path: object, flags: int, *mode: int) -> int:
        if flags == os.O_WRONLY and next(fails, False):
            raise OSError(errno.EMFILE, "too many open files")
        return open_file(path, flags, *mode)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "open", too_many_open)
    put_then = [put(blobs, NEW[number:]) for number in range(4)]
    assert len({inode(blobs, digest) for digest in put_then}) == 4
    for digest in put_then:
        blobs.verify(digest)
    assert files(blobs) == []


def test_what_cannot_be_renamed_on_a_full_disk_is_deleted(
    blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put(blobs, OLD)

    def full(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Path, "rename", full)
    blobs.recycle([old])
    assert not blobs.contains(old)
    assert files(blobs) == []


def test_the_room_of_recycled_files_is_given_back(blobs: FolderBlobs) -> None:
    old = [put(blobs, bytes([number]) * 1000) for number in range(9)]
    blobs.recycle(old[:6])
    put(blobs, NEW)
    blobs.recycle(old[6:])
    assert files(blobs)
    blobs.free_recycled()
    assert files(blobs) == []


def test_those_of_a_killed_process_are_forgotten(blobs: FolderBlobs, tmp_path: Path) -> None:
    blobs.recycle([put(blobs, OLD)])
    assert files(blobs)
    FolderBlobs(tmp_path / "blobs")
    assert files(blobs) == []


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_process_that_starts_does_not_disturb_one_that_has_spare_files(
    blobs: FolderBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    put(blobs, OLD)
    blobs.recycle([digest_of(OLD), put(blobs, OLD[1:])])
    fdatasync = os.fdatasync

    def interrupted(descriptor: int) -> None:
        monkeypatch.undo()
        FolderBlobs(tmp_path / "blobs")
        fdatasync(descriptor)

    if when == "while":
        monkeypatch.setattr(os, "fdatasync", interrupted)
    else:
        FolderBlobs(tmp_path / "blobs")
    for content in (NEW, NEW[1:], NEW[2:]):
        blobs.verify(put(blobs, content))
    assert files(blobs) == []
