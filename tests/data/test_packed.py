"""Packed images give the same images as the folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hfmds.cli.main import main
from hfmds.data.datasets import load_dataset
from hfmds.data.named_images import load_named_images
from hfmds.data.packed import load_npz, save_npz
from hfmds.data.sources import load_images
from hfmds.errors import ConfigurationError
from tests.data.picture_folders import write_image

FILES = ("dog/b.png", "dog/a.png", "cat/x.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        for value, file in enumerate(FILES):
            write_image(tmp_path / "birds" / part / file, value)
    return tmp_path / "birds"


def pack(folder: Path, out: Path) -> Path:
    assert main(["data", "pack", str(folder), str(out)]) == 0
    return out


def test_a_packed_folder_is_read_as_the_folder(folder: Path, tmp_path: Path) -> None:
    packed = pack(folder / "train", tmp_path / "train.npz")
    for names in (("cat", "dog"), ("dog", "owl", "cat")):
        own, same = load_images(str(folder / "train"), names), load_images(str(packed), names)
        assert sorted(zip(own.labels.tolist(), own.pixels[:, 0, 0, 0].tolist(), strict=True)) == (
            sorted(zip(same.labels.tolist(), same.pixels[:, 0, 0, 0].tolist(), strict=True))
        )
    named = load_named_images(str(packed), "the images")
    assert (named.class_names, named.named_by_owner) == (("cat", "dog"), True)
    with pytest.raises(ConfigurationError, match="'dog'"):
        load_images(str(packed), ("cat",))
    with pytest.raises(ConfigurationError, match="is not a class number"):
        load_images(str(packed))


def test_a_folder_of_two_packed_files_is_a_data_set(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    for part in ("train", "test"):
        pack(folder / part, tmp_path / "packed" / f"{part}.npz")
    packed = load_dataset(str(tmp_path / "packed"), tmp_path)
    original = load_dataset(str(folder), tmp_path)
    assert packed.class_names == original.class_names
    assert (packed.train.pixels == original.train.pixels).all()
    assert (packed.train.labels == original.train.labels).all()
    images, _ = load_npz(tmp_path / "packed" / "test.npz")
    save_npz(tmp_path / "packed" / "test.npz", images, ("cat", "cow"))
    with pytest.raises(ConfigurationError, match="class_names"):
        load_dataset(str(tmp_path / "packed"), tmp_path)


@pytest.mark.parametrize("names", [np.array(["a"]), np.arange(3), np.array([["a", "b"]])])
def test_class_names_that_do_not_fit_are_refused(tmp_path: Path, names: np.ndarray) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, images=np.zeros((2, 1, 2, 2), np.uint8), labels=[0, 1], class_names=names)
    with pytest.raises(ConfigurationError, match=r"x\.npz"):
        load_images(str(path))


def test_an_unwritable_path_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "pack", str(folder / "train"), "/nowhere/x.npz"]) == 2
    assert "/nowhere/x.npz" in capsys.readouterr().err
    assert main(["data", "fetch", "minst"]) == 2
    assert "mnist" in capsys.readouterr().err
