"""A folder of backups of one program, named by their times: the newest few stay.

Only complete ones count. A full disk is freed of the oldest, but never in vain, and never of the
newest: if all that may leave is not enough, all of them stay and the backup fails.
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
    """What may still be written there."""
    return shutil.disk_usage(folder).free


def back_up_in_turn(
    program: str,
    data_dir: Path,
    folder: Path,
    keep: int,
    now: datetime,
    free: Callable[[Path], int] = free_bytes,
) -> tuple[Path, Backup]:
    """Make a backup in the folder; of all that are complete there, the newest `keep` stay.

    Unavailable if there is no room for it, also without those that may leave. What has another
    name than a time is left alone.
    """
    make_data_folder(folder, "the folder of backups")
    target = folder / _unused_name(folder, now)

    def make_room(needed_bytes: int) -> None:
        for left in _cut_off(folder, program):
            remove_folder(left)
        _shorten(folder, program, keep)
        _free(folder, program, needed_bytes - free(folder))

    made = back_up(program, data_dir, target, make_room)
    _shorten(folder, program, keep)
    return target, made


def _unused_name(folder: Path, now: datetime) -> str:
    """Of this second, or of the next in which nobody has made or begun a backup there."""
    taken = {path.name.partition(".")[0] for path in folder.iterdir()}
    while (name := now.strftime(_NAME)) in taken:
        now += timedelta(seconds=1)
    return name


def _shorten(folder: Path, program: str, keep: int) -> None:
    for path, _ in _complete(folder, program)[:-keep]:
        _remove(path, program)


def _free(folder: Path, program: str, lacking_bytes: int) -> None:
    """Remove as many of the oldest as it takes; none if all but the newest are not enough."""
    doomed = []
    for path, backup in _complete(folder, program)[:-1]:
        if lacking_bytes <= 0:
            break
        doomed.append(path)
        lacking_bytes -= bytes_on_disk(digest.size_bytes for digest in backup.files.values())
    if lacking_bytes > 0:
        raise Unavailable(
            f"no room for a backup in {folder}: {lacking_bytes} bytes are lacking, also without "
            f"all that are there but the newest; give it a larger disk, or have the {program} "
            f"keep less"
        )
    for path in doomed:
        _remove(path, program)


def _complete(folder: Path, program: str) -> list[tuple[Path, Backup]]:
    """Oldest first. Whose list is damaged is neither counted nor removed: somebody should look."""
    found = []
    for path in sorted(folder.iterdir()):
        if not _TIME.fullmatch(path.name):
            continue
        try:
            backup = read_list(path)
        except (ConfigurationError, CorruptData):
            continue
        if backup.program == program:
            found.append((path, backup))
    return found


def _cut_off(folder: Path, program: str) -> list[Path]:
    """What was left of the program's backups that were being made, or being removed."""
    suffix = partial_suffix(program)
    partial = [path for path in folder.iterdir() if path.name.endswith(suffix)]
    return [path for path in partial if _TIME.fullmatch(path.name.removesuffix(suffix))]


def _remove(path: Path, program: str) -> None:
    # Half of it must not pass for a backup if we are killed.
    remove_folder(path.rename(path.with_name(path.name + partial_suffix(program))))
