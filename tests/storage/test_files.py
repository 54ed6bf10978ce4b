import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hfmds.errors import Unavailable
from hfmds.storage.files import SharedSync, full_disk_is_unavailable, write_whole


def test_a_full_disk_asks_the_sender_to_try_again() -> None:
    with pytest.raises(Unavailable) as refusal, full_disk_is_unavailable(Path("/data")):
        Path("/dev/full").write_bytes(b"x")
    assert str(refusal.value) == "no space left in /data; free some, then try again"


def test_other_faults_of_a_disk_are_not_hidden() -> None:
    with pytest.raises(OSError, match="broken"), full_disk_is_unavailable(Path("/data")):
        raise OSError(errno.EIO, "broken")


def test_a_file_is_written_whole_and_in_an_order_that_survives_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_whole(path, b"old")
    synced: list[tuple[str, bytes]] = []  # what is made durable, and what a reader sees then
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        synced.append((kind, path.read_bytes()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    write_whole(path, b"new")
    # The bytes before the name, or the name might point to nothing; the name before we say so.
    assert synced == [("file", b"old"), ("folder", b"new")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_on_a_full_disk_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_whole(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="no space left"):
        write_whole(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [
        ("state.json", b"old")
    ]


def test_each_who_asks_one_after_the_other_has_the_folder_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("hfmds.storage.files.sync_folder", synced.append)
    shared = SharedSync(tmp_path)
    for _ in range(3):
        shared.sync()
    assert synced == [tmp_path] * 3


def test_a_sync_serves_all_who_came_before_it_and_nobody_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: set[object] = set()
    durable: set[object] = set()

    def sync(folder: Path) -> None:
        seen = set(came)
        os.sched_yield()
        durable.update(seen)

    monkeypatch.setattr("hfmds.storage.files.sync_folder", sync)
    shared = SharedSync(tmp_path)

    def ask(number: int) -> bool:
        came.add(number)
        shared.sync()
        return number in durable

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(2000)))


class CountedLock:
    """Tells how many have come to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.came = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("fails", [False, True])
def test_those_who_wait_for_a_sync_share_the_next_one_that_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    shared: Any = SharedSync(tmp_path)
    shared._one_syncs = lock = CountedLock()
    syncs: list[Path] = []

    def sync(folder: Path) -> None:
        syncs.append(folder)
        if len(syncs) == 1:
            for _ in range(5):  # the one who syncs, and four who wait
                lock.came.acquire()
        elif fails and len(syncs) == 2:
            raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("hfmds.storage.files.sync_folder", sync)
    with ThreadPoolExecutor(5) as threads:
        errors = [asking.exception() for asking in [threads.submit(shared.sync) for _ in range(5)]]
    assert sum(error is not None for error in errors) == fails
    assert len(syncs) == 2 + fails
