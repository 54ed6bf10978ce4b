from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from hfmds.data.decoded import FILE_NAME, decoded

TOMORROW = time.time_ns() + 86_400 * 10**9


class Decoder:
    """Decodes a file to an image of its first byte, and counts how often it is asked."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.times = 0

    def __call__(self) -> np.ndarray:
        self.times += 1
        return (
            np.array([file.read_bytes()[:1] for file in self.files])
            .view(np.uint8)
            .reshape(-1, 1, 1, 1)
        )


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a.bmp", tmp_path / "b.bmp"]
    for file in found:
        file.write_bytes(file.name.encode())
    return found


def read(files: list[Path], now_ns: int = TOMORROW) -> tuple[list[int], int]:
    """The images, and whether they had to be decoded."""
    decoder = Decoder(files)
    pixels = decoded(files[0].parent, files, decoder, lambda: now_ns)
    return pixels.ravel().tolist(), decoder.times


A, B = b"ab"


def test_images_are_decoded_once(files: list[Path]):
    assert read(files) == ([A, B], 1)
    assert read(files) == ([A, B], 0)
    assert sorted(p.name for p in files[0].parent.iterdir()) == [FILE_NAME, "a.bmp", "b.bmp"]


def test_a_file_changed_within_its_size_and_time_is_noticed(files: list[Path]):
    read(files)
    before = files[0].stat()
    files[0].write_bytes(b"x.bmp")
    while True:
        os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns))
        if files[0].stat().st_ctime_ns != before.st_ctime_ns:  # the next tick of its clock
            break
    assert files[0].stat().st_size == before.st_size
    assert files[0].stat().st_mtime_ns == before.st_mtime_ns
    assert read(files) == ([ord("x"), B], 1)


def test_files_that_swapped_names_are_noticed(files: list[Path]):
    for file in files:
        os.utime(file, ns=(0, 0))
    read(files)
    spare = files[0].with_name("spare")
    files[0].rename(spare)
    files[1].rename(files[0])
    spare.rename(files[1])
    assert read(files) == ([B, A], 1)
    assert read(files) == ([B, A], 0)


def test_another_choice_or_order_of_files_is_noticed(files: list[Path]):
    read(files)
    assert read(files[:1]) == ([A], 1)
    assert read(files[::-1]) == ([B, A], 1)


def test_files_just_written_may_change_again_and_are_not_kept(files: list[Path]):
    just_now = max(file.stat().st_ctime_ns for file in files) + 10**9
    assert read(files, just_now) == ([A, B], 1)
    assert read(files, just_now) == ([A, B], 1)


def test_files_that_change_while_they_are_decoded_are_decoded_again(files: list[Path]):
    def decode() -> np.ndarray:
        pixels = Decoder(files)()
        files[0].write_bytes(b"longer than before")
        return pixels

    decoded(files[0].parent, files, decode, lambda: TOMORROW)
    assert read(files) == ([ord("l"), B], 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "garbage"])
def test_a_damaged_file_is_made_anew(files: list[Path], damage: str):
    read(files)
    kept = files[0].parent / FILE_NAME
    content = bytearray(kept.read_bytes())
    if damage == "flip":
        place = content.rindex(bytes([A, B]))
        assert content.count(bytes([A, B])) == 1  # the pixels
        content[place] ^= 1
    changed = {"flip": content, "cut": content[:100], "empty": b"", "garbage": b"hello"}
    kept.write_bytes(changed[damage])
    assert read(files) == ([A, B], 1)
    assert read(files) == ([A, B], 0)


def test_drafts_of_killed_writers_are_removed(files: list[Path]):
    folder = files[0].parent
    dead, alive = folder / ".hfmds-decoded-2147483647.part", f".hfmds-decoded-{os.getppid()}.part"
    dead.write_bytes(b"half")
    (folder / alive).write_bytes(b"half")
    soon = (folder / alive).stat().st_ctime_ns + 10 * 10**9
    assert read(files, soon) == ([A, B], 1)
    assert {p.name for p in folder.iterdir()} == {FILE_NAME, alive, "a.bmp", "b.bmp"}

    (folder / FILE_NAME).unlink()
    assert read(files, soon + 3600 * 10**9) == ([A, B], 1)  # alive, but not the one that wrote
    assert {p.name for p in folder.iterdir()} == {FILE_NAME, "a.bmp", "b.bmp"}


def test_a_folder_that_cannot_be_written_costs_only_time(files: list[Path]):
    (files[0].parent / FILE_NAME).mkdir()  # in the place of the file; also stops an administrator
    assert read(files) == ([A, B], 1)
    assert read(files) == ([A, B], 1)
    assert sorted(p.name for p in files[0].parent.iterdir()) == [FILE_NAME, "a.bmp", "b.bmp"]
