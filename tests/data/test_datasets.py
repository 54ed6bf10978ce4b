from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hfmds.data.datasets import Dataset, load_dataset, subset
from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError
from tests.data.picture_folders import write_image

NOWHERE = Path("no-data-root")


def folder_of(path: Path, train: list[str], test: list[str]) -> str:
    """Write a data set folder. Image i has the brightness i."""
    for brightness, file in enumerate(
        [*(f"train/{f}" for f in train), *(f"test/{f}" for f in test)]
    ):
        write_image(path / file, brightness)
    return str(path)


def images_of(labels: list[int], shape: tuple[int, ...] = (1, 2, 2)) -> LabelledImages:
    """Make images. All pixels of image i are i."""
    values = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    pixels = np.broadcast_to(values, (len(labels), *shape)).copy()
    return LabelledImages(pixels, np.array(labels, np.int64))


def test_a_folder_has_its_classes_by_name(tmp_path: Path):
    name = folder_of(tmp_path, ["dog/b.png", "dog/a.png", "cat/x.png"], ["cat/1.png", "dog/1.png"])
    dataset = load_dataset(name, NOWHERE)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 1, 1]
    assert dataset.train.pixels[:, 0, 0, 0].tolist() == [2, 1, 0]
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.test.pixels[:, 0, 0, 0].tolist() == [3, 4]
    assert (dataset.name, dataset.classes, dataset.image_shape) == (name, 2, (1, 3, 4))


@pytest.mark.parametrize("shape", [(2, 5), (5, 2), (2, 5, 3), (5, 2, 3)])
def test_images_need_not_be_square_nor_coloured(tmp_path: Path, shape: tuple[int, ...]):
    values = {name: np.arange(np.prod(shape), dtype=np.uint8) + n for n, name in enumerate("ab")}
    for part in ("train", "test"):
        for name, pixels in values.items():
            (tmp_path / part / name).mkdir(parents=True)
            Image.fromarray(pixels.reshape(shape)).save(tmp_path / part / name / "1.png")
    dataset = load_dataset(str(tmp_path), NOWHERE)
    height, width, channels = (*shape, 1)[:3]
    assert dataset.image_shape == (channels, height, width)
    for images in (dataset.train, dataset.test):
        assert images.labels.tolist() == [0, 1]
        for image, pixels in zip(images.pixels, values.values(), strict=True):
            assert image.transpose(1, 2, 0).ravel().tolist() == pixels.tolist()


def test_numbered_class_folders_are_sorted_by_number(tmp_path: Path):
    files = ["10/a.png", "9/a.png", "1/a.png"]
    dataset = load_dataset(folder_of(tmp_path, files, files), NOWHERE)
    assert dataset.class_names == ("1", "9", "10")
    assert dataset.train.pixels[:, 0, 0, 0].tolist() == [2, 1, 0]


def test_a_named_folder_makes_numbered_folders_names(tmp_path: Path):
    files = ["10/a.png", "9/a.png", "none/a.png"]
    assert load_dataset(folder_of(tmp_path, files, files), NOWHERE).class_names == (
        "10",
        "9",
        "none",
    )


def test_reading_a_folder_can_be_followed(tmp_path: Path):
    name = folder_of(tmp_path, [f"0/{n:04}.png" for n in range(501)], ["0/a.png"])
    heard: list[tuple[str, int, int]] = []
    load_dataset(name, NOWHERE, progress=lambda *what: heard.append(what))
    assert heard == [("train", 500, 501), ("train", 501, 501), ("test", 1, 1)]


def test_digits_have_a_training_and_a_test_part():
    dataset = load_dataset("digits:16", NOWHERE)
    assert dataset.image_shape == (1, 16, 16)
    assert dataset.class_names == tuple("0123456789")
    assert len(dataset.train) + len(dataset.test) == 1797
    assert len(dataset.test) == 364


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifar-10", "did you mean cifar10?"),
        ("CIFAR100", "did you mean cifar100?"),
        ("fashion_mnist", "did you mean fashion-mnist?"),
        ("digits:20#train", "did you mean digits?"),
        ("/no/such/place", "known are cifar10, cifar100, mnist, fashion-mnist, digits[:SIZE]"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(name: str, hint: str):
    with pytest.raises(ConfigurationError) as caught:
        load_dataset(name, NOWHERE)
    message = str(caught.value)
    assert message.startswith(f"data set {name!r} is neither known nor a folder; {hint}")
    assert message.endswith("or give a folder with train/<class>/*.jpg and test/<class>/*.jpg")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([], ["a/1.png"], r"has no folder 'train'; put images .* such as .*/train/cat/1.jpg"),
        (["a/1.png"], [], r"has no folder 'test'; put images in one folder per class"),
        (["1.png"], ["a/1.png"], r"/train has no class folders; put images"),
        (["a/1.png"], ["a/1.png", "b/1.png"], r"'b' of .*/test is missing in .*/train; add .*/b"),
        (["a/1.png", "b/1.png"], ["a/1.png"], r"'b' of .*/train is missing in .*/test; add .*/b"),
    ],
)
def test_an_incomplete_folder_is_refused(
    tmp_path: Path, train: list[str], test: list[str], message: str
):
    with pytest.raises(ConfigurationError, match=message):
        load_dataset(folder_of(tmp_path, train, test), NOWHERE)


def test_an_empty_class_folder_is_refused(tmp_path: Path):
    name = folder_of(tmp_path, ["a/1.png"], ["a/1.png"])
    (tmp_path / "train" / "b").mkdir()
    with pytest.raises(ConfigurationError, match="train/b"):
        load_dataset(name, NOWHERE)


def test_a_broken_link_is_named(tmp_path: Path):
    name = folder_of(tmp_path, ["a/1.png"], ["a/1.png"])
    (tmp_path / "train" / "a" / "2.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(ConfigurationError, match=r"train/a/2\.png"):
        load_dataset(name, NOWHERE)


def test_a_name_too_long_for_a_folder_is_refused():
    with pytest.raises(ConfigurationError, match=r"^xxx"):
        load_dataset("x" * 300, NOWHERE)


def test_parts_of_different_shapes_are_refused(tmp_path: Path):
    write_image(tmp_path / "train" / "a" / "1.png")
    write_image(tmp_path / "test" / "a" / "1.png", mode="RGB")
    with pytest.raises(ConfigurationError, match=r"3x4 grey .*3x4 colour"):
        load_dataset(str(tmp_path), NOWHERE)


def test_a_data_set_without_images_is_refused():
    with pytest.raises(ConfigurationError, match="data set x has no test images"):
        Dataset("x", images_of([0]), images_of([]), ("a",))


def test_a_subset_is_balanced_and_keeps_the_order():
    images = images_of([0, 1, 2] * 20)
    chosen = subset(images, 30, seed=1)
    assert np.bincount(chosen.labels).tolist() == [10, 10, 10]
    values = chosen.pixels[:, 0, 0, 0].tolist()
    assert values == sorted(set(values))
    np.testing.assert_array_equal(chosen.labels, images.labels[values])
    np.testing.assert_array_equal(chosen.pixels, subset(images, 30, seed=1).pixels)
    assert values != subset(images, 30, seed=2).pixels[:, 0, 0, 0].tolist()


def test_a_subset_that_does_not_divide_has_one_more_of_some_classes():
    counts = np.bincount(subset(images_of([0, 1, 2] * 20), 32, seed=0).labels)
    assert sorted(counts.tolist()) == [10, 11, 11]


def test_all_images_are_a_subset():
    images = images_of([0, 1, 1, 0])
    np.testing.assert_array_equal(subset(images, 4, seed=0).pixels, images.pixels)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (61, "a subset of 61 images: must be 3, one of each class, to 60, as many as there are"),
        (2, "a subset of 2 images: must be 3"),
        (36, "needs 12 of class 2, which has 10; ask for at most 30"),
    ],
)
def test_an_impossible_subset_is_refused(count: int, message: str):
    images = images_of([0] * 25 + [1] * 25 + [2] * 10)
    with pytest.raises(ConfigurationError, match=message):
        subset(images, count, seed=0)


@pytest.mark.parametrize("seed", range(4))  # the order of the rare classes varies
def test_a_subset_is_limited_by_the_rarest_of_rare_classes(seed: int):
    images = images_of([0] * 40 + [1] * 10 + [2] * 4)
    with pytest.raises(ConfigurationError, match=r"12 of class [12], .*at most 12"):
        subset(images, 36, seed)
    assert np.bincount(subset(images, 12, seed).labels).tolist() == [4, 4, 4]


def test_data_modules_are_light_until_they_are_used():
    modules = "datasets folders packed split_summary splits torchvision_sets"
    program = "import sys; from hfmds.data import " + ", ".join(modules.split())
    program += "; print({'torch', 'torchvision', 'sklearn', 'matplotlib'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr
