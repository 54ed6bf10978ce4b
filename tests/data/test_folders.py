from __future__ import annotations

from pathlib import Path

import pytest

from hfmds.data.folders import class_folders, image_files, read_images
from hfmds.errors import ConfigurationError
from tests.data.picture_folders import write_image


class Crowd(list[Path]):
    """Sparse files that claim more images than memory holds."""

    def __len__(self) -> int:
        return 10**15


@pytest.mark.parametrize("look", [class_folders, image_files])
def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, look):
    (tmp_path / "file").write_text("in the place of a folder")
    with pytest.raises(ConfigurationError) as caught:
        look(tmp_path / "file")
    assert str(caught.value) == (
        f"{tmp_path / 'file'} cannot be read (Not a directory); check the path and its permissions"
    )


def test_more_images_than_memory_holds_are_refused(tmp_path: Path):
    write_image(tmp_path / "cat" / "1.png")
    with pytest.raises(ConfigurationError) as caught:
        read_images(Crowd([tmp_path / "cat" / "1.png"]))
    assert str(caught.value) == (
        f"the {10**15} images of {tmp_path}, each 3x4 grey, need 12000000.0 GB, more than there is "
        "memory; make them smaller, or put a subset of them in another folder"
    )


def test_hidden_files_and_known_clutter_are_ignored(tmp_path: Path):
    for name in ("2.JPG", "1.png"):
        write_image(tmp_path / name)
    for name in ("._1.png", ".DS_Store", "Thumbs.db", "desktop.ini", "a.txt", "b.JSON", "c.md"):
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / ".thumbnails").mkdir()
    assert image_files(tmp_path) == [tmp_path / "1.png", tmp_path / "2.JPG"]


def test_a_folder_in_a_class_folder_is_refused(tmp_path: Path):
    write_image(tmp_path / "cat" / "1.png")
    write_image(tmp_path / "cat" / "more" / "2.png")
    message = r"cat has a folder 'more' in it; put its images in .*/cat itself, or move"
    with pytest.raises(ConfigurationError, match=message):
        image_files(tmp_path / "cat")


@pytest.mark.parametrize("images", [["1.png"], []])
def test_the_first_file_of_an_unknown_kind_is_named(tmp_path: Path, images: list[str]):
    for name in images:
        write_image(tmp_path / name)
    for name in ("3.ppm", "2.heic", "1.txt"):
        (tmp_path / name).write_bytes(b"unknown")
    message = r"/2\.heic is of an unknown kind \(known: \.bmp, .*\.webp\); convert or remove it"
    with pytest.raises(ConfigurationError, match=message):
        image_files(tmp_path)
