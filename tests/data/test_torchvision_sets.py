"""Data sets that torchvision downloads, and that are read without it afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hfmds.data.datasets import load_dataset
from hfmds.data.sources import load_images
from hfmds.data.torchvision_sets import fetch
from hfmds.errors import ConfigurationError
from tests.data.picture_folders import cifar_files, mnist_files, small_cifar, write_files


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    from torchvision.datasets import MNIST

    write_files(tmp_path / "MNIST" / "raw", mnist_files())
    fetch("mnist", tmp_path, MNIST)
    dataset = load_dataset("mnist", tmp_path)
    assert dataset.name == "mnist"
    assert dataset.image_shape == (1, 2, 3)
    assert dataset.class_names == tuple("0123456789")
    assert dataset.train.pixels[:, 0, 1, 2].tolist() == [0, 1, 2, 3]
    assert dataset.train.labels.tolist() == [9, 8, 7, 6]
    assert dataset.test.labels.tolist() == [9, 8]
    assert dataset.train.pixels.dtype == np.uint8
    assert load_images(str(tmp_path / "mnist" / "test.npz")).labels.tolist() == [9, 8]


def test_colour_comes_first_and_classes_have_their_names(tmp_path: Path) -> None:
    write_files(tmp_path / "cifar-10-batches-py", cifar_files())
    fetch("cifar10", tmp_path, small_cifar())
    dataset = load_dataset("cifar10", tmp_path)
    assert dataset.train.pixels.shape == (5, 3, 32, 32)
    assert dataset.train.pixels[1, :, 0, 0].tolist() == [2, 12, 22]
    assert (dataset.train.pixels[1] == dataset.train.pixels[1, :, :1, :1]).all()
    assert dataset.train.labels.tolist() == [1, 2, 3, 4, 5]
    assert dataset.test.labels.tolist() == [6]
    assert dataset.class_names == tuple(f"class {c}" for c in range(10))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion-mnist"])
def test_absent_data_are_downloaded_only_on_request(tmp_path: Path, name: str) -> None:
    root = tmp_path / "data"
    with pytest.raises(ConfigurationError, match=f"hfmds data fetch {name} {root}"):
        load_dataset(name, root)
    assert not root.exists()


def test_the_error_of_missing_torchvision_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ConfigurationError, match=r"install hfmds-fl\[torch\]"):
        fetch("mnist", tmp_path)


def test_a_failed_download_names_the_data_set_and_its_folder(tmp_path: Path) -> None:
    class Unreachable:
        def __init__(self, *_: object, **__: object) -> None:
            raise RuntimeError("no\nconnection")

    with pytest.raises(ConfigurationError, match=r"mnist .* \(no connection\)"):
        fetch("mnist", tmp_path, Unreachable)
