"""Copies of a program's embedded storage, made while it works, and back.

A backup is a folder: the database, every blob, and a list of both with their digests, written last.
Until then it has another name, so that half a backup is none. It holds what a disk would hold had
the power gone at that moment: what was acknowledged, and nothing that crash recovery could not go
on from. For that the database's write lock is held while the blobs get second names (hard links),
which takes milliseconds; the copying comes after it. Uploads under way are left out: devices send
them again.

PostgreSQL and S3 have means of their own: docs/operations.md.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hfmds.domain.digest import Digest, digest_of_file
from hfmds.errors import ConfigurationError, CorruptData, InvalidInput
from hfmds.storage.blobs import CHUNK_BYTES, is_blob_name
from hfmds.storage.database import looking, opened_database, transaction
from hfmds.storage.files import (
    FolderLock,
    full_disk_is_unavailable,
    make_data_folder,
    make_folder_durably,
    remove_folder,
    sync_file,
    sync_folder,
    write_whole,
)

DATABASE = "state.sqlite3"
BLOBS = "blobs"

_LIST = "backup.json"
_FORMAT = 1
_BLOCK_BYTES = 4096
_LINKS = ".backup"  # in the data folder, for hard links reach no other file system


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup holds: its files by their paths in it, which are those in a data folder."""

    program: str
    made_at: str
    files: dict[str, Digest]

    @property
    def blobs(self) -> int:
        """How many pieces of content there are."""
        return len(self.files) - 1

    @property
    def size_bytes(self) -> int:
        """Of the database and all content."""
        return sum(digest.size_bytes for digest in self.files.values())


def back_up(
    program: str, data_dir: Path, target: Path, make_room: Callable[[int], None] | None = None
) -> Backup:
    """Copy the program's storage to a new folder; the program may be at work.

    `make_room` is told how many bytes that may take, before any is written; no other backup of the
    data folder is being made then. ConfigurationError if there is nothing of the program's to back
    up or the target is there, CorruptData if a blob is not what it was. Whatever fails leaves
    nothing behind.
    """
    _require_embedded(data_dir)
    if os.path.lexists(target):
        raise _is_there(target)
    partial = target.with_name(target.name + partial_suffix(program))
    links = data_dir / _LINKS
    with closing(FolderLock(links, "HFMDS_DATA_DIR")), full_disk_is_unavailable(target):
        try:
            remove_folder(partial)  # of a backup that was killed
            _require_tables_of(program, data_dir)
            if make_room:
                make_room(bytes_on_disk(_sizes(data_dir)))
            made = _fill(program, data_dir, partial)
            _give_name(partial, target)
        except BaseException:
            remove_folder(partial)  # a full disk would stay full
            raise
        sync_folder(target.parent)
    return made


def _give_name(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise _is_there(target) from error  # since it was begun


def _is_there(target: Path) -> ConfigurationError:
    return ConfigurationError(f"{target} is there; give a folder that does not exist yet")


def partial_suffix(program: str) -> str:
    """How the name of a backup ends that is being made, or was when its maker was killed.

    With the program's name: another one may be at work in the same folder.
    """
    return f".{program}.partial"


def _fill(program: str, data_dir: Path, target: Path) -> Backup:
    links = data_dir / _LINKS
    make_data_folder(target, "the backup's folder")
    try:
        remove_folder(links / BLOBS)  # of a backup that was killed
        _freeze(data_dir, links, target / DATABASE)
        files = {DATABASE: digest_of_file(target / DATABASE)}
        for name in _blob_names(links):
            files[name] = _copy(links / name, target / name)
            if files[name].sha256 != Path(name).name:
                raise CorruptData(
                    f"blob {data_dir / name} has changed on disk; put back a good copy from an "
                    f"older backup, or delete it if no run needs it"
                )
    finally:
        remove_folder(links / BLOBS)
    made = Backup(program, datetime.now(UTC).isoformat(timespec="seconds"), files)
    _sync_folders(target)
    write_whole(target / _LIST, _encode(made))
    return made


def bytes_on_disk(sizes: Iterable[int]) -> int:
    """What files of these sizes take in a backup: whole blocks each, and a place in the list."""
    return sum((size // _BLOCK_BYTES + 2) * _BLOCK_BYTES for size in sizes)


def _sizes(data_dir: Path) -> Iterator[int]:
    for name in (DATABASE, f"{DATABASE}-wal", *_blob_names(data_dir)):
        with suppress(FileNotFoundError):  # dropped just now
            yield (data_dir / name).stat().st_size


def check(source: Path, program: str) -> Backup:
    """Compare every file of a backup with its digest; CorruptData if one is not what it was.

    ConfigurationError if it is no backup, or another program's.
    """
    backup = read_list(source)
    if backup.program != program:
        raise ConfigurationError(
            f"{source} is a backup of the {backup.program}, not of the {program}"
        )
    for name, digest in backup.files.items():
        try:
            found = digest_of_file(source / name)
        except FileNotFoundError:
            raise CorruptData(f"the backup {source} lacks {name}; use another one") from None
        if found != digest:
            raise CorruptData(
                f"the backup {source} is damaged: {name} is {found}, not {digest}; use another one"
            )
    return backup


def restore(source: Path, program: str, data_dir: Path) -> Backup:
    """Put a backup where a program will look for its storage.

    CorruptData, before anything is written, if the backup is damaged; ConfigurationError if
    something is in the data folder already.
    """
    _require_empty(data_dir, "move what is there away, or give another folder")
    backup = check(source, program)
    with full_disk_is_unavailable(data_dir):
        make_data_folder(data_dir, "HFMDS_DATA_DIR")
        # The database last: without it, a program would not take the rest for its storage.
        for name in sorted(backup.files, key=lambda name: name == DATABASE):
            _copy(source / name, data_dir / name)
        _sync_folders(data_dir)
    return backup


def _freeze(data_dir: Path, links: Path, database: Path) -> None:
    """Copy the database, and give all blobs second names, both as they are at one moment."""
    with opened_database(_url(data_dir)) as engine, looking(engine) as view:
        with transaction(engine):  # nobody writes, or deletes what the database still names
            view.exec_driver_sql("SELECT count(*) FROM sqlite_schema")  # the view begins here
            for name in _blob_names(data_dir):
                _link(data_dir / name, links / name)
        source = view.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        with closing(sqlite3.connect(database)) as copy:
            source.backup(copy)
    sync_file(database)


def _url(data_dir: Path) -> str:
    return f"sqlite:///{data_dir.absolute() / DATABASE}"


def _blob_names(folder: Path) -> Iterator[str]:
    """Paths of all blobs, as seen from the folder; those of the coordinator are by run."""
    # A run's folder may be deleted under our feet: os.walk goes on then.
    for where, folders, names in os.walk(folder / BLOBS):
        folders.sort()
        for name in sorted(filter(is_blob_name, names)):
            yield (Path(where) / name).relative_to(folder).as_posix()


def _link(path: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        link.hardlink_to(path)
    except FileNotFoundError:
        pass  # dropped just now: the database does not name it any more
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot have a second name ({error.strerror}), which a backup of a program at "
            f"work needs; stop the program and copy its folder"
        ) from error


def _copy(source: Path, target: Path) -> Digest:
    """Copy a file durably; the digest of what was copied."""
    make_folder_durably(target.parent)
    sha256, size_bytes = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            sha256.update(chunk)
            size_bytes += writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return Digest(sha256.hexdigest(), size_bytes)


def _sync_folders(folder: Path) -> None:
    for path in [folder, *(one for one in folder.rglob("*") if one.is_dir())]:
        sync_folder(path)


def _require_embedded(data_dir: Path) -> None:
    if not (data_dir / DATABASE).is_file():
        raise ConfigurationError(
            f"{data_dir} has no {DATABASE}: it is no program's data folder, or its rows are in "
            f"PostgreSQL, which pg_dump backs up (docs/operations.md)"
        )
    if (data_dir / "cache").is_dir():
        raise ConfigurationError(
            f"the content of {data_dir} is in an object store, which a copy of this folder would "
            f"not hold; see docs/operations.md for how to back it up"
        )


def _require_tables_of(program: str, data_dir: Path) -> None:
    """Both programs read HFMDS_DATA_DIR: a folder of the other one would pass for a good backup."""
    with opened_database(_url(data_dir)) as engine, looking(engine) as view:
        found = view.exec_driver_sql("SELECT name FROM sqlite_schema WHERE name GLOB '*_schema'")
        owners = sorted(name.removesuffix("_schema") for (name,) in found)
    if program not in owners:
        raise ConfigurationError(
            f"{data_dir} has no tables of the {program}, but of: {', '.join(owners) or 'nobody'}; "
            f"give the {program}'s data folder (--data-dir, HFMDS_DATA_DIR)"
        )


def _require_empty(folder: Path, remedy: str) -> None:
    try:
        there = [path.name for path in folder.iterdir() if path.name != "lost+found"]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigurationError(f"{folder} is not a folder; {remedy}") from None
    if there:
        raise ConfigurationError(f"{folder} is not empty: it has {sorted(there)[0]}; {remedy}")


def _encode(backup: Backup) -> bytes:
    files = {
        name: {"sha256": digest.sha256, "size_bytes": digest.size_bytes}
        for name, digest in backup.files.items()
    }
    told = {"format": _FORMAT, "program": backup.program, "made_at": backup.made_at, "files": files}
    return json.dumps(told, indent=1).encode()


def read_list(source: Path) -> Backup:
    """What a backup says it holds; ConfigurationError if it is none, CorruptData if damaged."""
    try:
        told: Any = json.loads((source / _LIST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(
            f"{source} is no backup, or one that was cut off: it has no {_LIST}"
        ) from None
    except ValueError as error:
        raise CorruptData(f"{source / _LIST} is damaged ({error}); use another backup") from error
    try:
        if told["format"] != _FORMAT:
            raise ConfigurationError(
                f"{source} is a backup of format {told['format']}, this program knows {_FORMAT}; "
                f"install the version that made it"
            )
        files = {name: Digest(**digest) for name, digest in told["files"].items()}
        backup = Backup(str(told["program"]), str(told["made_at"]), files)
    except (AttributeError, KeyError, TypeError, InvalidInput) as error:
        raise CorruptData(f"{source / _LIST} is damaged ({error!r}); use another backup") from error
    for name in files:
        parts = Path(name).parts
        if name != DATABASE and (parts[0] != BLOBS or ".." in parts):
            raise CorruptData(f"{source / _LIST} names {name!r}, which no backup has")
    if DATABASE not in files:
        raise CorruptData(f"{source / _LIST} names no database; use another backup")
    return backup
