"""Files of blobs that are not needed any more, for the next ones to be written over.

As databases do with their logs: a new file costs the kernel about three times as much, which finds
pages and blocks for it, and takes them back when it is deleted. Each round makes and drops a
cohort's updates, all of about one size.

Who still reads a dropped blob must read on, as from any deleted file. So a file that somebody has
open, or that has a second name, is deleted and not used again.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hfmds.storage.files import sync_folder

_MOST_FILES = 256
_MOST_FILE_BYTES = 8 << 20  # larger content comes in parts, and its file grows with them
_PREFIX = "spare-"


class Spares:
    """Spare files in a folder, all of them made of blobs of another one. Thread-safe."""

    def __init__(self, folder: Path, blobs_folder: Path) -> None:
        """Forgets those of an earlier process; should it live after all, it finds them gone."""
        self._folder = folder
        self._blobs_folder = blobs_folder
        self._own = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._dropped: list[Path] = []  # not looked at yet
        self._free: list[Path] = []
        for path in folder.glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)

    def add(self, paths: Iterable[Path]) -> None:
        """Take the files of blobs, which are gone then; one that was gone before is no error.

        Whether they can be used is asked when the first is: to find out takes longer than this.
        """
        for path in paths:
            spare = self._folder / f"{_PREFIX}{self._own}-{next(self._numbers)}"
            with suppress(FileNotFoundError):
                path.rename(spare)
                with self._lock:
                    self._dropped.append(spare)

    def take(self) -> Path | None:
        """A file that is the caller's, to be written over and renamed; none: there is none."""
        with self._lock:
            if self._dropped:
                self._look_through()
            return self._free.pop() if self._free else None

    def clear(self) -> None:
        """Delete all of them."""
        with self._lock:
            for path in (*self._dropped, *self._free):
                path.unlink(missing_ok=True)
            self._dropped, self._free = [], []

    def _look_through(self) -> None:
        # Before any of them is written over: a power cut must not bring the name back that it had.
        sync_folder(self._blobs_folder)
        for path in self._dropped:
            if len(self._free) < _MOST_FILES and _is_usable(path):
                self._free.append(path)
            else:
                path.unlink(missing_ok=True)
        self._dropped = []


def _is_usable(path: Path) -> bool:
    """Whether the file has no other name and no reader, as far as the system tells of readers."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(descriptor)
        if found.st_nlink > 1 or found.st_size > _MOST_FILE_BYTES:
            return False
        # A lease is given to the only one who has a file open or mapped. Who opens it meanwhile
        # waits until it is given back; the holder is told by a signal, by one that nobody minds.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (AttributeError, OSError):  # not on this system, not on this file system, or in use
        return False
    finally:
        os.close(descriptor)
    return True
