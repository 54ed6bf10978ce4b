from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hfmds.errors import CorruptData, Unavailable
from hfmds.storage.backup.backup import back_up, check, partial_suffix
from hfmds.storage.backup.rotation import back_up_in_turn
from tests.storage.test_backup import PROGRAM, Program, flip

MONDAY = datetime(2026, 1, 5, 2, 17, tzinfo=UTC)
CONTENT_BYTES = 1_000_000
PLENTY = 1 << 40


class Nights:
    """Backups of one program in one folder, a night apart, on a disk of our choice."""

    def __init__(self, folder: Path) -> None:
        self.program = Program(folder / "data")
        self.digest = self.program.keep(bytes(CONTENT_BYTES))
        self.backups = folder / "backups"
        self.free_bytes = PLENTY

    def back_up(self, night: int, keep: int = 3) -> Path:
        now = MONDAY + timedelta(days=night)
        path, _ = back_up_in_turn(
            PROGRAM, self.program.data_dir, self.backups, keep, now, lambda _: self.free_bytes
        )
        return path

    def there(self) -> list[str]:
        """By day of January, and what has another name."""
        return [path.name.removesuffix("T021700")[-2:] for path in sorted(self.backups.iterdir())]


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_the_newest_stay(nights: Nights) -> None:
    for night in range(5):
        check(nights.back_up(night), PROGRAM)
    assert nights.there() == ["07", "08", "09"]


def test_those_that_fail_push_no_good_one_out(nights: Nights) -> None:
    nights.back_up(0)
    sound = nights.program.blobs.local_path(nights.digest)
    flip(sound)
    for night in range(1, 6):
        with pytest.raises(CorruptData):
            nights.back_up(night)
    assert nights.there() == ["05"]
    flip(sound)
    nights.back_up(6)
    assert nights.there() == ["05", "11"]


def test_what_a_killed_one_left_is_removed_and_never_counted(nights: Nights) -> None:
    for night in range(2):
        nights.back_up(night)
    for night in range(2, 6):
        whole = nights.backups / f"2026-01-{5 + night:02}T021700"
        back_up(PROGRAM, nights.program.data_dir, whole)
        whole.rename(f"{whole}{partial_suffix(PROGRAM)}")  # all but its name
    nights.back_up(6)
    assert nights.there() == ["05", "06", "11"]


def test_a_full_disk_loses_the_oldest_and_no_more_than_it_takes(nights: Nights) -> None:
    for night in range(3):
        nights.back_up(night)
    nights.free_bytes = CONTENT_BYTES // 2
    nights.back_up(3)
    assert nights.there() == ["06", "07", "08"]


def test_a_disk_that_is_too_small_loses_nothing(nights: Nights) -> None:
    for night in range(3):
        nights.back_up(night)
    for number in range(3):  # larger than two that could leave
        nights.program.keep(bytes([number + 1]) * CONTENT_BYTES)
    nights.free_bytes = 0
    with pytest.raises(Unavailable, match="no room for a backup"):
        nights.back_up(3)
    assert nights.there() == ["05", "06", "07"]


def test_the_last_good_one_stays_on_a_disk_for_one(nights: Nights) -> None:
    nights.back_up(0)
    nights.free_bytes = CONTENT_BYTES // 2
    with pytest.raises(Unavailable):
        nights.back_up(1)
    assert nights.there() == ["05"]


def test_what_is_not_named_by_a_time_is_left_alone(nights: Nights) -> None:
    nights.backups.mkdir()
    back_up(PROGRAM, nights.program.data_dir, nights.backups / "before-upgrade")
    for night in range(3):
        nights.back_up(night, keep=1)
    assert nights.there() == ["07", "de"]


def test_what_another_program_is_making_is_left_alone(nights: Nights) -> None:
    making = nights.backups / f"2026-01-05T021659{partial_suffix('synthesis_store')}"
    making.mkdir(parents=True)
    nights.back_up(0)
    assert making.is_dir()


def test_of_one_second_each_has_a_name_of_its_own(nights: Nights) -> None:
    making = nights.backups / f"2026-01-05T021700{partial_suffix('synthesis_store')}"
    making.mkdir(parents=True)
    names = [nights.back_up(0).name for _ in range(2)]
    assert names == ["2026-01-05T021701", "2026-01-05T021702"]
    assert making.is_dir()


def test_backups_of_another_program_are_left_alone(nights: Nights) -> None:
    nights.backups.mkdir()
    other = nights.backups / "2026-01-01T021700"
    back_up("synthesis_store", nights.program.data_dir, other)
    for night in range(2):
        nights.back_up(night, keep=1)
    check(other, "synthesis_store")
    assert nights.there() == ["01", "06"]
