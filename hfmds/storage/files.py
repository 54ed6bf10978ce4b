"""Files that survive a crash: writes, renames and folders that are there after a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, cast

from hfmds.errors import ConfigurationError, Unavailable


def make_data_folder(folder: Path, setting: str) -> None:
    """Create the folder if it is absent, and check that this process can write to it.

    ConfigurationError names the folder and the setting to change.
    """
    try:
        make_folder_durably(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"cannot keep data in {folder} ({error.strerror}: {error.filename}); "
            f"set {setting} to a place this user can write to"
        ) from error


class FolderLock:
    """A lock on a folder for one process; the kernel frees it when the process ends."""

    def __init__(self, folder: Path, setting: str) -> None:
        """Take the lock; ConfigurationError if another process has it."""
        make_data_folder(folder, setting)
        self._file = (folder / "lock").open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigurationError(
                f"{folder} is in use by another process; stop it, or set {setting} to another "
                f"folder"
            ) from None

    def close(self) -> None:
        """Release the lock."""
        self._file.close()


def make_folder_durably(folder: Path) -> None:
    """Create the folder and its parents so that they survive a crash."""
    if folder.is_dir():
        return
    make_folder_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries (creations, renames, deletions) survive a crash."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Make the file's bytes survive a crash."""
    _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_private(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    """Open a file for writing; a new file is readable for this user alone."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    return cast(BinaryIO, open(path, mode, opener=opener))


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file durably and in one step: a reader sees the old or the new content.

    The order matters: sync the bytes, name them, sync the name. Unavailable if the disk is full;
    then the old content is still there.
    """
    partial = path.with_name(f".{path.name}.partial")
    with full_disk_is_unavailable(path.parent):
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)  # on a full disk every byte counts
            raise
        sync_folder(path.parent)


@contextmanager
def full_disk_is_unavailable(folder: Path) -> Iterator[None]:
    """Raise Unavailable if the disk is full inside the block, so that the sender tries again."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Unavailable(
            f"no space left in {folder}; free some, then try again",
            public="no space left; try again when there is some",
        ) from error


def remove_folder(path: Path) -> None:
    """Remove a folder and its content; an absent folder is no error."""
    while path.exists():  # try again if another thread removes it too and was faster with a part
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
