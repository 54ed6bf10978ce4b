"""The same images under the class numbers of different runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hfmds.data.named_images import NamedImages, load_named_images
from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.domain.learning import LabelledImages
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.errors import ConfigurationError, InvalidInput

RECIPE = Recipe(ModelSpec("any", 1, 2, 2, 3), Normalisation((0.5,), (0.5,)), rounds=1)
PETS = dataclasses.replace(RECIPE, class_names=("dog", "ant", "cat"))


def folder_of(path: Path, *names: str) -> Path:
    """Write one 2x2 image per class. The brightness is the position of the class."""
    for place, name in enumerate(names):
        (path / name).mkdir(parents=True)
        Image.new("L", (2, 2), place).save(path / name / "1.png")
    return path


def load(source: str, class_names: tuple[str, ...] = ()) -> NamedImages:
    return load_named_images(source, "the device's data", class_names)


def test_folders_are_mapped_by_name(tmp_path: Path) -> None:
    source = str(folder_of(tmp_path, "cat", "dog"))
    images = load(source).labelled_for(PETS)
    assert images.labels.tolist() == [2, 0]
    assert images.pixels[:, 0, 0, 0].tolist() == [0, 1]
    direct = load_images(source, PETS.class_names)  # a simulation loads these
    np.testing.assert_array_equal(images.labels, direct.labels)
    np.testing.assert_array_equal(images.pixels, direct.pixels)


def test_a_device_serves_runs_with_different_class_numbers(tmp_path: Path) -> None:
    local = load(str(folder_of(tmp_path, "cat", "dog")))
    other = dataclasses.replace(RECIPE, class_names=("cat", "cow", "dog"))
    assert local.labelled_for(PETS).labels.tolist() == [2, 0]
    assert local.labelled_for(other).labels.tolist() == [0, 2]


def test_numbered_folders_are_their_numbers(tmp_path: Path) -> None:
    source = str(folder_of(tmp_path, "0", "2"))
    assert load(source).labelled_for(RECIPE).labels.tolist() == [0, 2]


def test_unknown_class_is_named(tmp_path: Path) -> None:
    local = load(str(folder_of(tmp_path, "cat", "yak")))
    with pytest.raises(InvalidInput, match=rf"'yak'.*dog, ant, cat.*{tmp_path}") as refused:
        local.labelled_for(PETS)
    assert "dog, ant, cat" in refused.value.public  # without private details
    assert "yak" not in refused.value.public
    assert str(tmp_path) not in refused.value.public


def test_named_folders_need_a_run_with_names(tmp_path: Path) -> None:
    local = load(str(folder_of(tmp_path, "cat")))
    with pytest.raises(InvalidInput, match=rf"'cat' of .*class names.*{tmp_path}"):
        local.labelled_for(RECIPE)


def test_class_names_number_the_folders(tmp_path: Path) -> None:
    local = load(str(folder_of(tmp_path, "cat", "dog")), ("dog", "emu", "cat"))
    assert local.labelled_for(RECIPE).labels.tolist() == [2, 0]
    assert local.labelled_for(PETS).labels.tolist() == [2, 0]  # an empty class is no error


def test_class_names_name_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "pets.npz"
    save_npz(path, LabelledImages(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1])))
    named = load(str(path), ("cat", "dog"))
    assert named.labelled_for(PETS).labels.tolist() == [2, 0, 0]
    assert named.labelled_for(RECIPE).labels.tolist() == [0, 1, 1]
    assert load(str(path)).labelled_for(PETS).labels.tolist() == [0, 1, 1]


def test_too_few_class_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pets.npz"
    save_npz(path, LabelledImages(np.zeros((1, 1, 2, 2), np.uint8), np.array([4])))
    with pytest.raises(ConfigurationError, match="2 class names are given"):
        load(str(path), ("cat", "dog"))


def test_labels_outside_the_model_are_refused(tmp_path: Path) -> None:
    local = load(str(folder_of(tmp_path, "0", "7")))
    with pytest.raises(InvalidInput, match=rf"0 to 7.*classes 0 to 2.*{tmp_path}"):
        local.labelled_for(RECIPE)


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    local = load(str(folder_of(tmp_path, "0")))
    big = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, height=32))
    with pytest.raises(InvalidInput, match=rf"\[1, 2, 2\].*\[1, 32, 2\].*{tmp_path}") as refused:
        local.labelled_for(big)
    assert "[1, 2, 2]" in refused.value.public
    assert str(tmp_path) not in refused.value.public


@pytest.mark.parametrize("names", [(), ("cat",)])
def test_empty_folder_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        load(str(tmp_path), names)


def test_class_without_images_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, "cat")
    (tmp_path / "dog").mkdir()
    with pytest.raises(ConfigurationError, match=str(tmp_path / "dog")):
        load(str(tmp_path))


def test_a_folder_called_digits_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path / "digits", "0")
    monkeypatch.chdir(tmp_path)
    assert len(load("digits")) == 1
