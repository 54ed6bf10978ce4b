"""Files that survive: what it takes for a write to be there after the power comes back."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hfmds.errors import ConfigurationError, Unavailable

_MOST_PIECES = 1024  # that the system takes in one call


def make_data_folder(folder: Path, setting: str) -> None:
    """Create the folder if need be and check that we can write to it.

    ConfigurationError names the folder and the `setting` to change.
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
    """Held while a process uses a folder of its own; the kernel frees it when the process ends."""

    def __init__(self, folder: Path, setting: str) -> None:
        """Take it; ConfigurationError if another process has the folder."""
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
        """Let another process have the folder."""
        self._file.close()


def make_folder_durably(folder: Path) -> None:
    """Create the folder and its parents such that they survive a crash."""
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


def forget_cached(path: Path) -> None:
    """Have the kernel use the memory that holds the file's bytes for others; they must be synced.

    Where it cannot be told so, or the file is gone, nothing.
    """
    with suppress(AttributeError, FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _sync(path: Path, flags: int) -> None:
    # Without Python's own files, which ask the system twice as much.
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, pieces: Sequence[bytes | memoryview], *, synced: bool) -> None:
    """Make a file of pieces, or write over one; if `synced`, its bytes survive a crash."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        write_at(descriptor, 0, pieces)
        size_bytes = sum(map(len, pieces))
        if os.fstat(descriptor).st_size != size_bytes:
            os.ftruncate(descriptor, size_bytes)
        if synced:
            # Bytes and length, which is all of a file that is written over; macOS has only fsync.
            getattr(os, "fdatasync", os.fsync)(descriptor)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, offset: int, pieces: Iterable[bytes | memoryview]) -> None:
    """Write to an open file from `offset` on, one piece behind the other."""
    left = [memoryview(piece) for piece in pieces]
    while left:
        # All at once: after each call the thread has to wait for the interpreter.
        written = os.pwritev(descriptor, left[:_MOST_PIECES], offset)
        offset += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file durably, and in one step: a reader sees the old one or the new one.

    The order matters: bytes on disk, then the name, then the name on disk. Unavailable if the disk
    is full; the old file is still there then.
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
    """A full disk is not the sender's fault: it should try again once there is room."""
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
    """Remove a folder and all that is in it; one that is gone is no error."""
    while path.exists():  # again if somebody else removes it, too, and was quicker with a part
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
