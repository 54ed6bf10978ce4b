"""Backs up a program's embedded storage while the program works, and restores it.

A backup is a folder with the database, all blobs, and a list of both with their digests. The list
is written last. Until then the folder has another name, so half a backup is never taken for one.

A backup holds what a disk would hold after a power cut at that moment, so a program recovers from
it as from a crash. For this the backup holds the database's write lock while it gives the blobs
second names (hard links), which takes milliseconds. It copies them later. Partial uploads are not
part of a backup: devices send them again.

docs/operations.md explains how to back up PostgreSQL and S3.
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
from hfmds.storage.database import opened_database, read_connection, write_session
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
_LINKS = ".backup"  # in the data folder, because hard links stay on one file system


@dataclass(frozen=True, slots=True)
class Backup:
    """The list of a backup: its files by path. The paths are those in a data folder."""

    program: str
    made_at: str
    files: dict[str, Digest]

    @property
    def blobs(self) -> int:
        """The number of blobs."""
        return len(self.files) - 1

    @property
    def size_bytes(self) -> int:
        """The size of the database and all blobs."""
        return sum(digest.size_bytes for digest in self.files.values())


def back_up(
    program: str, data_dir: Path, target: Path, make_room: Callable[[int], None] | None = None
) -> Backup:
    """Copy the program's storage to a new folder; the program may be at work.

    Before the first write this calls `make_room` with the bytes that the backup may take, while no
    other backup of the data folder is made. ConfigurationError if the program has nothing to back
    up, or the target exists. CorruptData if a blob has changed. A failure leaves nothing behind.
    """
    _require_embedded(data_dir)
    if os.path.lexists(target):
        raise _exists(target)
    partial = target.with_name(target.name + partial_suffix(program))
    links = data_dir / _LINKS
    with closing(FolderLock(links, "HFMDS_DATA_DIR")), full_disk_is_unavailable(target):
        try:
            remove_folder(partial)  # a killed backup left it
            _require_tables_of(program, data_dir)
            if make_room:
                make_room(bytes_on_disk(_sizes(data_dir)))
            backup = _fill(program, data_dir, partial)
            _give_name(partial, target)
        except BaseException:
            remove_folder(partial)  # otherwise a full disk stays full
            raise
        sync_folder(target.parent)
    return backup


def _give_name(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise _exists(target) from error  # made since the backup began


def _exists(target: Path) -> ConfigurationError:
    return ConfigurationError(f"{target} exists; give a folder that does not exist yet")


def partial_suffix(program: str) -> str:
    """Return the suffix of an incomplete backup's name.

    It has the program's name, because another program may back up to the same folder.
    """
    return f".{program}.partial"


def _fill(program: str, data_dir: Path, target: Path) -> Backup:
    links = data_dir / _LINKS
    make_data_folder(target, "the backup's folder")
    try:
        remove_folder(links / BLOBS)  # a killed backup left it
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
    backup = Backup(program, datetime.now(UTC).isoformat(timespec="seconds"), files)
    _sync_folders(target)
    write_whole(target / _LIST, _encode(backup))
    return backup


def bytes_on_disk(sizes: Iterable[int]) -> int:
    """Return the disk space of files in a backup: their blocks, and their entries in the list."""
    return sum((size // _BLOCK_BYTES + 2) * _BLOCK_BYTES for size in sizes)


def _sizes(data_dir: Path) -> Iterator[int]:
    for name in (DATABASE, f"{DATABASE}-wal", *_blob_names(data_dir)):
        with suppress(FileNotFoundError):  # deleted since the listing
            yield (data_dir / name).stat().st_size


def check(source: Path, program: str) -> Backup:
    """Compare each file of a backup with its digest; CorruptData if one has changed.

    ConfigurationError if the folder is no backup, or a backup of another program.
    """
    backup = read_list(source)
    if backup.program != program:
        raise ConfigurationError(
            f"{source} is a backup of the {backup.program}, not of the {program}"
        )
    for name, digest in backup.files.items():
        try:
            actual = digest_of_file(source / name)
        except FileNotFoundError:
            raise CorruptData(f"the backup {source} lacks {name}; use another one") from None
        if actual != digest:
            raise CorruptData(
                f"the backup {source} is damaged: {name} is {actual}, not {digest}; use another one"
            )
    return backup


def restore(source: Path, program: str, data_dir: Path) -> Backup:
    """Copy a backup to a data folder, where a program will find its storage.

    This checks the backup before it writes anything: CorruptData if the backup is damaged,
    ConfigurationError if the data folder is not empty.
    """
    _require_empty(data_dir, "move its files away, or give another folder")
    backup = check(source, program)
    with full_disk_is_unavailable(data_dir):
        make_data_folder(data_dir, "HFMDS_DATA_DIR")
        # The database comes last: without it, a program does not use the other files.
        for name in sorted(backup.files, key=lambda name: name == DATABASE):
            _copy(source / name, data_dir / name)
        _sync_folders(data_dir)
    return backup


def _freeze(data_dir: Path, links: Path, database: Path) -> None:
    """Copy the database, and give all blobs second names, both as of the same moment."""
    with opened_database(_url(data_dir)) as engine, read_connection(engine) as view:
        with write_session(engine):  # no program writes, or deletes blobs that the database names
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
    """Yield the paths of all blobs, relative to the folder."""
    # The coordinator has a folder for each run. os.walk goes on if one is deleted.
    for where, folders, names in os.walk(folder / BLOBS):
        folders.sort()
        for name in sorted(filter(is_blob_name, names)):
            yield (Path(where) / name).relative_to(folder).as_posix()


def _link(path: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        link.hardlink_to(path)
    except FileNotFoundError:
        pass  # deleted since the listing, so the database no longer names it
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot have a hard link ({error.strerror}), which the backup of a running "
            f"program needs; stop the program and copy its folder"
        ) from error


def _copy(source: Path, target: Path) -> Digest:
    """Copy a file durably, and return the digest of the copy."""
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
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
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
    """Refuse the data folder of the other program, which also reads HFMDS_DATA_DIR."""
    with opened_database(_url(data_dir)) as engine, read_connection(engine) as view:
        tables = view.exec_driver_sql("SELECT name FROM sqlite_schema WHERE name GLOB '*_schema'")
        owners = sorted(name.removesuffix("_schema") for (name,) in tables)
    if program not in owners:
        raise ConfigurationError(
            f"{data_dir} has no tables of the {program}, but of: "
            f"{', '.join(owners) or 'no program'}; give the {program}'s data folder "
            f"(--data-dir, HFMDS_DATA_DIR)"
        )


def _require_empty(folder: Path, remedy: str) -> None:
    try:
        names = [path.name for path in folder.iterdir() if path.name != "lost+found"]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigurationError(f"{folder} is not a folder; {remedy}") from None
    if names:
        raise ConfigurationError(f"{folder} is not empty: it has {min(names)}; {remedy}")


def _encode(backup: Backup) -> bytes:
    files = {
        name: {"sha256": digest.sha256, "size_bytes": digest.size_bytes}
        for name, digest in backup.files.items()
    }
    content = {
        "format": _FORMAT,
        "program": backup.program,
        "made_at": backup.made_at,
        "files": files,
    }
    return json.dumps(content, indent=1).encode()


def read_list(source: Path) -> Backup:
    """Read the list of a backup; ConfigurationError if it is none, CorruptData if damaged."""
    try:
        content: Any = json.loads((source / _LIST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(
            f"{source} is no backup, or an incomplete one: it has no {_LIST}; use another one"
        ) from None
    except ValueError as error:
        raise CorruptData(f"{source / _LIST} is damaged ({error}); use another backup") from error
    try:
        if content["format"] != _FORMAT:
            raise ConfigurationError(
                f"{source} is a backup of format {content['format']}, this program knows "
                f"{_FORMAT}; install the version that made it"
            )
        files = {name: Digest(**digest) for name, digest in content["files"].items()}
        backup = Backup(str(content["program"]), str(content["made_at"]), files)
    except (AttributeError, KeyError, TypeError, InvalidInput) as error:
        raise CorruptData(f"{source / _LIST} is damaged ({error!r}); use another backup") from error
    for name in files:
        parts = Path(name).parts
        if name != DATABASE and (parts[0] != BLOBS or ".." in parts):
            raise CorruptData(f"{source / _LIST} names {name!r}, which no backup has")
    if DATABASE not in files:
        raise CorruptData(f"{source / _LIST} names no database; use another backup")
    return backup
