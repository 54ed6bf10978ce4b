"""Lists of image files, and images in .npy files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hfmds.data.named_images import load_named_images
from hfmds.data.sources import load_images
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.errors import ConfigurationError, InvalidInput

RECIPE = Recipe(ModelSpec("any", 1, 2, 2, 3), Normalisation((0.5,), (0.5,)), rounds=1)
PETS = dataclasses.replace(RECIPE, class_names=("dog", "ant", "cat"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "2024").mkdir()
    for name, value in (("2024/a.png", 10), ("2024/b.png", 20), ("c.png", 30)):
        Image.new("L", (2, 2), value).save(tmp_path / name)
    return tmp_path


def manifest(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "shard.csv"
    path.write_text(text, encoding=encoding)
    return path


def test_files_come_in_the_order_of_the_list(folder: Path) -> None:
    path = manifest(folder, f"label,path,who\n2,{folder / 'c.png'},me\n0,2024/a.png,you\n")
    images = load_images(str(path))
    assert images.labels.tolist() == [2, 0]
    assert images.pixels[:, 0, 0, 0].tolist() == [30, 10]


def test_labels_are_mapped_by_name(folder: Path) -> None:
    path = manifest(folder, "path,label\n2024/a.png,cat\n2024/b.png,dog\nc.png,cat\n", "utf-8-sig")
    images = load_named_images(str(path), "the device's data")
    assert images.labelled_for(PETS).labels.tolist() == [2, 0, 2]
    with pytest.raises(InvalidInput, match=r"'cat'.*not a class number.*class names"):
        images.labelled_for(RECIPE)


def test_labels_that_are_numbers_are_the_runs(folder: Path) -> None:
    path = manifest(folder, "path,label\n2024/a.png,2\n2024/b.png,1\n")
    images = load_named_images(str(path), "the device's data")
    assert images.labelled_for(RECIPE).labels.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column label and no column path"),
        ("path\na.png\n", "has no column label in its first line; begin it with: path,label"),
        ("path,label\n", "lists no images"),
        ("path,label\n2024/a.png,cat\n2024/b.png\n", "line 3: a path and a label are needed"),
        ('path,label\n"2024/a.png,cat\n', "cannot be read as a CSV file"),
        ("path,label\nmissing.png,cat\n", "missing.png cannot be read"),
    ],
)
def test_the_error_of_a_wrong_list_names_the_line(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_named_images(str(manifest(folder, text)), "the device's data")


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_named_images(str(tmp_path / "shard.csv"), "the device's data")


def test_npy_files_come_in_pairs(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    np.save(tmp_path / "my-images.npy", pixels)
    np.save(tmp_path / "my-labels.npy", np.array([4, 1], np.uint8))
    images = load_images(str(tmp_path / "my-images.npy"))
    np.testing.assert_array_equal(images.pixels, pixels)
    assert images.labels.tolist() == [4, 1]


def test_the_error_of_a_wrong_pair_names_the_cause(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 2, 2), np.uint8))
    with pytest.raises(ConfigurationError, match="x-images"):
        load_images(str(tmp_path / "x.npy"))
    np.save(tmp_path / "images.npy", np.zeros((1, 1, 2, 2), np.uint8))
    with pytest.raises(ConfigurationError, match=r"labels\.npy is missing"):
        load_images(str(tmp_path / "images.npy"))
    np.save(tmp_path / "labels.npy", np.zeros(2, np.int64))
    with pytest.raises(ConfigurationError, match=r"labels\.npy.*int64 \[2\]"):
        load_images(str(tmp_path / "images.npy"))
    np.save(tmp_path / "labels.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ConfigurationError, match=r"labels\.npy"):
        load_images(str(tmp_path / "images.npy"))
