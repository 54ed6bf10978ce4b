from __future__ import annotations

from pathlib import Path

import pytest

from hfmds.data.folders import class_folders, image_files, read_images
from hfmds.errors import ConfigurationError
from tests.data.picture_folders import write_image


class Crowd(list[Path]):
    """Files that say they are more than they are."""

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
