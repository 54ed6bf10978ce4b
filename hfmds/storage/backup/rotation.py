"""Keeps the newest few backups of a program in a folder, each named by its time.

Only complete backups count. To make room on a full disk, the oldest are deleted, but never the
newest. If that is not enough, all of them stay and the new backup fails.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from hfmds.errors import ConfigurationError, CorruptData, Unavailable
from hfmds.storage.backup.backup import Backup, back_up, bytes_on_disk, partial_suffix, read_list
from hfmds.storage.files import make_data_folder, remove_folder

_NAME = "%Y-%m-%dT%H%M%S"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}")


def free_bytes(folder: Path) -> int:
    """Return the free space of a folder's disk."""
    return shutil.disk_usage(folder).free


def back_up_in_turn(
    program: str,
    data_dir: Path,
    folder: Path,
    keep: int,
    now: datetime,
    free: Callable[[Path], int] = free_bytes,
) -> tuple[Path, Backup]:
    """Make a backup in the folder, and keep the newest `keep` complete ones.

    Unavailable if deleting the older backups does not make enough room. Other files stay.
    """
    make_data_folder(folder, "the folder of backups")
    target = folder / _unused_name(folder, now)

    def make_room(needed_bytes: int) -> None:
        for path in _incomplete(folder, program):
            remove_folder(path)
        _shorten(folder, program, keep)
        _free(folder, program, needed_bytes - free(folder))

    backup = back_up(program, data_dir, target, make_room)
    _shorten(folder, program, keep)
    return target, backup


def _unused_name(folder: Path, now: datetime) -> str:
    """Return the name of this second, or of the next one without a backup."""
    names = {path.name.partition(".")[0] for path in folder.iterdir()}
    while (name := now.strftime(_NAME)) in names:
        now += timedelta(seconds=1)
    return name


def _shorten(folder: Path, program: str, keep: int) -> None:
    for path, _ in _complete(folder, program)[:-keep]:
        _remove(path, program)


def _free(folder: Path, program: str, lacking_bytes: int) -> None:
    """Remove as many of the oldest as needed; none if that would not be enough."""
    removable = []
    for path, backup in _complete(folder, program)[:-1]:
        if lacking_bytes <= 0:
            break
        removable.append(path)
        lacking_bytes -= bytes_on_disk(digest.size_bytes for digest in backup.files.values())
    if lacking_bytes > 0:
        raise Unavailable(
            f"no room for a backup in {folder}: {lacking_bytes} bytes are lacking even without "
            f"the older backups; give it a larger disk, or have the {program} keep less"
        )
    for path in removable:
        _remove(path, program)


def _complete(folder: Path, program: str) -> list[tuple[Path, Backup]]:
    """Return the complete backups, oldest first.

    A backup with a damaged list does not count and stays, for an operator to look at.
    """
    backups = []
    for path in sorted(folder.iterdir()):
        if not _TIME.fullmatch(path.name):
            continue
        try:
            backup = read_list(path)
        except (ConfigurationError, CorruptData):
            continue
        if backup.program == program:
            backups.append((path, backup))
    return backups


def _incomplete(folder: Path, program: str) -> list[Path]:
    """Return the backups whose making or removal was killed."""
    suffix = partial_suffix(program)
    partial = [path for path in folder.iterdir() if path.name.endswith(suffix)]
    return [path for path in partial if _TIME.fullmatch(path.name.removesuffix(suffix))]


def _remove(path: Path, program: str) -> None:
    # Renamed first, so that after a kill nobody takes the rest for a backup.
    remove_folder(path.rename(path.with_name(path.name + partial_suffix(program))))
