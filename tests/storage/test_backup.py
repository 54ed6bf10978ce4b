from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import ConfigurationError, CorruptData, HfmdsError
from hfmds.storage.backup.backup import back_up, check, partial_suffix, restore
from hfmds.storage.blobs import FolderBlobs
from hfmds.storage.database import opened_database, write_session
from hfmds.storage.schema import Schema

PROGRAM = "coordinator"


class Program:
    """Keeps rows that name blobs, in the order that ours do: bytes first, then the row."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.blobs = FolderBlobs(data_dir / "blobs" / "run-1")
        self._url = f"sqlite:///{data_dir}/state.sqlite3"
        with opened_database(self._url) as engine, write_session(engine) as session:
            session.execute(text("CREATE TABLE IF NOT EXISTS named (sha256 TEXT)"))
            for program in (PROGRAM, "synthesis_store"):  # which may share a database
                session.execute(text(f"CREATE TABLE IF NOT EXISTS {program}_schema (v TEXT)"))

    def keep(self, content: bytes) -> Digest:
        digest = self.blobs.put_bytes(content)
        with opened_database(self._url) as engine, write_session(engine) as session:
            session.execute(text("INSERT INTO named VALUES (:name)"), {"name": digest.sha256})
        return digest

    @contextmanager
    def at_work(self) -> Iterator[threading.Event]:
        """Inside, it keeps and drops content as fast as it can, at most three pieces at a time.

        The event is set whenever it has named another one.
        """
        stop, named_another = threading.Event(), threading.Event()

        def work() -> None:
            held: list[Digest] = []
            with opened_database(self._url) as engine:
                for number in range(1_000_000):
                    if stop.is_set():
                        break
                    held.append(self.blobs.put_bytes(f"content {number}".encode()))
                    gone = held.pop(0) if len(held) > 3 else None
                    with write_session(engine) as session:
                        session.execute(
                            text("INSERT INTO named VALUES (:name)"), {"name": held[-1].sha256}
                        )
                        if gone:
                            session.execute(
                                text("DELETE FROM named WHERE sha256 = :name"),
                                {"name": gone.sha256},
                            )
                    named_another.set()
                    if gone:
                        self.blobs.delete(gone)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield named_another
        finally:
            stop.set()
            thread.join()


def named(folder: Path) -> set[str]:
    with closing(sqlite3.connect(folder / "state.sqlite3")) as database:
        return {name for (name,) in database.execute("SELECT sha256 FROM named")}


def kept(folder: Path) -> set[str]:
    return {digest.sha256 for digest in FolderBlobs(folder / "blobs" / "run-1").digests()}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "data")


@pytest.fixture
def backup(program: Program, tmp_path: Path) -> Path:
    """One with a database and two blobs, the first of them b"one"."""
    for content in (b"one", b"two"):
        program.keep(content)
    back_up(PROGRAM, program.data_dir, tmp_path / "backup")
    return tmp_path / "backup"


def test_what_is_restored_is_what_was_there(program: Program, backup: Path, tmp_path: Path) -> None:
    restored = restore(backup, PROGRAM, tmp_path / "new")
    assert named(tmp_path / "new") == kept(tmp_path / "new") == kept(program.data_dir)
    assert restored == check(backup, PROGRAM)
    assert (restored.program, restored.blobs) == (PROGRAM, 2)
    database_bytes = (backup / "state.sqlite3").stat().st_size
    assert restored.size_bytes == database_bytes + len(b"onetwo")


def test_every_backup_of_a_program_at_work_has_all_that_its_database_names(
    program: Program, tmp_path: Path
) -> None:
    for number in range(1500):  # so that looking for blobs takes longer than keeping one
        (program.data_dir / "blobs" / f"run-0-{number}").mkdir()
    seen = set()
    with program.at_work() as named_another:
        for number in range(5):
            named_another.clear()
            assert named_another.wait(60)
            folder = tmp_path / f"backup-{number}"
            back_up(PROGRAM, program.data_dir, folder)
            check(folder, PROGRAM)
            assert named(folder) <= kept(folder)
            seen |= named(folder)
    assert len(seen) >= 5  # it was at work: each backup has one that those before it lack
    assert kept(program.data_dir) == named(program.data_dir)  # and was not disturbed
    assert not (program.data_dir / ".backup" / "blobs").exists()


def test_links_that_a_killed_backup_left_are_no_part_of_the_next(
    program: Program, tmp_path: Path
) -> None:
    left = program.data_dir / ".backup" / "blobs" / ("a" * 64)
    left.parent.mkdir(parents=True)
    left.write_bytes(b"left")
    assert back_up(PROGRAM, program.data_dir, tmp_path / "backup").blobs == 0


def test_uploads_under_way_are_left_out(program: Program, tmp_path: Path) -> None:
    uploads = program.data_dir / "uploads"
    uploads.mkdir()
    (uploads / "x.part").write_bytes(b"half")
    (program.data_dir / "blobs" / "run-1" / "incoming" / "0123").write_bytes(b"half")
    made = back_up(PROGRAM, program.data_dir, tmp_path / "backup")
    assert list(made.files) == ["state.sqlite3"]
    restore(tmp_path / "backup", PROGRAM, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["state.sqlite3"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("what", ["state.sqlite3", f"blobs/run-1/{digest_of(b'one').sha256}"])
def test_a_damaged_backup_is_refused_before_anything_is_written(
    backup: Path, tmp_path: Path, what: str
) -> None:
    flip(backup / what)
    with pytest.raises(CorruptData, match=f"is damaged: {what} is .* use another one"):
        restore(backup, PROGRAM, tmp_path / "new")
    (backup / what).unlink()
    with pytest.raises(CorruptData, match=f"lacks {what}"):
        restore(backup, PROGRAM, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_every_change_of_the_list_is_noticed(backup: Path) -> None:
    told = (backup / "backup.json").read_bytes()
    sound, missed = check(backup, PROGRAM), []
    for place in range(0, len(told), 7):
        (backup / "backup.json").write_bytes(told[:place] + b"!" + told[place + 1 :])
        try:
            found = check(backup, PROGRAM)
        except HfmdsError:
            continue
        if (found.program, found.files) != (sound.program, sound.files):
            missed.append(place)  # the time it was made at is only told
    assert missed == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": 2}, "format 2, this program knows 1"),
        ({"program": "synthesis_store"}, "a backup of the synthesis_store, not of the coordinator"),
        ({"files": {}}, "names no database"),
        ({"files": {"../x": {"sha256": "0" * 64, "size_bytes": 1}}}, "names '../x'"),
        ({"files": {"blobs/../../x": {"sha256": "0" * 64, "size_bytes": 1}}}, "which no backup"),
        ({"files": {"/etc/x": {"sha256": "0" * 64, "size_bytes": 1}}}, "names '/etc/x'"),
        ({"files": {"x": 1}}, "is damaged"),
    ],
)
def test_a_list_that_is_not_ours_is_refused(
    backup: Path, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    told = json.loads((backup / "backup.json").read_text())
    (backup / "backup.json").write_text(json.dumps(told | changed))
    with pytest.raises((ConfigurationError, CorruptData), match=message):
        restore(backup, PROGRAM, tmp_path / "new")


def test_half_a_backup_is_none(backup: Path, tmp_path: Path) -> None:
    (backup / "backup.json").unlink()
    with pytest.raises(ConfigurationError, match=r"backup\.json"):
        restore(backup, PROGRAM, tmp_path / "new")


def test_nothing_is_written_over(program: Program, backup: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not empty"):
        restore(backup, PROGRAM, program.data_dir)
    with pytest.raises(ConfigurationError, match=f"{backup} exists"):
        back_up(PROGRAM, program.data_dir, backup)
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)  # as new volumes have it
    restore(backup, PROGRAM, tmp_path / "volume")


def test_a_backup_of_somebody_else_that_was_quicker_is_not_written_over(
    program: Program, tmp_path: Path
) -> None:
    target = tmp_path / "backups" / "monday"

    def meanwhile(_: int) -> None:
        target.mkdir(parents=True)
        (target / "theirs").touch()

    with pytest.raises(ConfigurationError, match=f"{target} exists"):
        back_up(PROGRAM, program.data_dir, target, meanwhile)
    assert [path.name for path in target.parent.rglob("*")] == ["monday", "theirs"]


def test_a_blob_that_has_changed_on_disk_is_told(program: Program, tmp_path: Path) -> None:
    digest = program.keep(b"content")
    flip(program.blobs.local_path(digest))
    with pytest.raises(CorruptData, match=f"{digest.sha256} has changed on disk"):
        back_up(PROGRAM, program.data_dir, tmp_path / "backup")


def test_a_backup_that_fails_leaves_nothing_behind(program: Program, tmp_path: Path) -> None:
    flip(program.blobs.local_path(program.keep(b"content")))
    killed = tmp_path / "backups" / f"monday{partial_suffix(PROGRAM)}"
    left = killed / "blobs"
    left.mkdir(parents=True)
    with pytest.raises(CorruptData):
        back_up(PROGRAM, program.data_dir, tmp_path / "backups" / "monday")
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_backup_has_its_name_when_it_is_complete(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def write(path: Path, content: bytes) -> None:
        seen.append((path.parent.name, (tmp_path / "backup").exists()))
        path.write_bytes(content)

    monkeypatch.setattr("hfmds.storage.backup.backup.write_whole", write)
    back_up(PROGRAM, program.data_dir, tmp_path / "backup")
    assert seen == [(f"backup{partial_suffix(PROGRAM)}", False)]
    check(tmp_path / "backup", PROGRAM)


def test_room_is_asked_for_before_anything_is_written(program: Program, tmp_path: Path) -> None:
    program.keep(bytes(100_000))
    asked = []

    def make_room(needed_bytes: int) -> None:
        asked.append(needed_bytes)
        assert list(tmp_path.glob("backup*")) == []

    made = back_up(PROGRAM, program.data_dir, tmp_path / "backup", make_room)
    assert made.size_bytes < asked[0] < made.size_bytes + 200_000
    files = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert sum(path.stat().st_blocks * 512 for path in files) <= asked[0]


def test_storage_elsewhere_is_told(program: Program, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no state.sqlite3.* pg_dump"):
        back_up(PROGRAM, tmp_path, tmp_path / "backup")
    (program.data_dir / "cache").mkdir()
    with pytest.raises(ConfigurationError, match="is in an object store"):
        back_up(PROGRAM, program.data_dir, tmp_path / "backup")


def test_a_folder_of_another_program_is_not_backed_up_as_this_ones(tmp_path: Path) -> None:
    data_dir = tmp_path / "store"
    data_dir.mkdir()
    with opened_database(f"sqlite:///{data_dir}/state.sqlite3") as engine:
        Schema("synthesis_store").prepare(engine)
    with pytest.raises(ConfigurationError, match="coordinator, but of: synthesis"):
        back_up("coordinator", data_dir, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    assert back_up("synthesis_store", data_dir, tmp_path / "backup").blobs == 0
