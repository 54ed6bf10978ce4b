import errno
import os
import stat
from pathlib import Path

import pytest

from hfmds.errors import Unavailable
from hfmds.storage.files import full_disk_is_unavailable, write_whole


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
