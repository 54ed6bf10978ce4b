"""Files of blobs that are not needed any more, for the next ones to be written over.

As databases do with their logs: a new file costs the kernel more than twice as much, which finds
pages and blocks for it, and takes them back when it is deleted. Each round makes and drops a
cohort's updates, all of about one size.

Who still reads a dropped blob must read on, as from any deleted file. So a file that somebody has
open, or that has a second name, is deleted and not used again.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import signal
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path

from hfmds.storage.files import sync_folder

log = logging.getLogger(__name__)

_MOST_FILES = 128
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
        self._files: list[Path] = []
        self._names_gone_for_good = True  # those that they had as blobs
        for path in folder.glob(f"{_PREFIX}*"):
            path.unlink(missing_ok=True)

    def add(self, paths: Iterable[Path]) -> None:
        """Take the files of blobs, which are gone then; one that was gone before is no error."""
        added: list[Path] = []
        for path in paths:
            spare = self._folder / f"{_PREFIX}{self._own}-{next(self._numbers)}"
            if len(self._files) + len(added) < _MOST_FILES and _renamed(path, spare):
                added.append(spare)
            else:
                path.unlink(missing_ok=True)
        with self._lock:
            self._files.extend(added)
            self._names_gone_for_good = False

    def take(self) -> Path | None:
        """A file that is the caller's, to be written over and renamed; none: there is none."""
        while True:
            with self._lock:
                if not self._files:
                    return None
                # Before any is written over: a power cut must not bring the name back that it had.
                if not self._names_gone_for_good:
                    sync_folder(self._blobs_folder)
                    self._names_gone_for_good = True
                path = self._files.pop()
            if _is_nobodys(path):
                return path
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete all of them."""
        with self._lock:
            files, self._files = self._files, []
        for path in files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # whoever gives them back has more to do
                log.warning("a file that is not needed stays: %s", error)


def _renamed(path: Path, spare: Path) -> bool:
    try:
        path.rename(spare)
    except OSError:  # it is gone; or the disk is full, where a file can be deleted, but not renamed
        return False
    return True


def _is_nobodys(path: Path) -> bool:
    """Whether the file has one name and no reader; no, where the system cannot tell."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_nlink > 1:
            return False
        # A lease is given to the only one who has a file open, as all have who have it mapped. Who
        # opens it meanwhile waits until it is given back, of which the holder is told by a signal:
        # by one that nobody minds.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (AttributeError, OSError):  # not on this system, not on this file system, or in use
        return False
    finally:
        os.close(descriptor)
    return True
