from __future__ import annotations

import os
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hfmds.data import known_files
from hfmds.data.datasets import load_dataset
from hfmds.data.torchvision_files import load, load_kind
from hfmds.errors import ConfigurationError
from tests.data.picture_folders import (
    cifar_archive,
    cifar_files,
    idx,
    mnist_archives,
    mnist_files,
    small_cifar,
    small_mnist,
    write_files,
)


@pytest.mark.parametrize(
    ("name", "folder", "first_class"),
    [("mnist", "MNIST", "0"), ("fashion-mnist", "FashionMNIST", "T-shirt/top")],
)
def test_grey_images_have_one_channel(tmp_path: Path, name: str, folder: str, first_class: str):
    write_files(tmp_path / folder / "raw", mnist_files())
    dataset = load_dataset(name, tmp_path)
    assert dataset.name == name
    assert dataset.image_shape == (1, 2, 3)
    assert dataset.classes == 10
    assert dataset.class_names[0] == first_class
    assert dataset.train.pixels[:, 0, 1, 2].tolist() == [0, 1, 2, 3]
    assert dataset.train.labels.tolist() == [9, 8, 7, 6]
    assert dataset.test.labels.tolist() == [9, 8]
    assert dataset.train.pixels.dtype == np.uint8


def test_colour_comes_first_and_classes_have_their_names(tmp_path: Path):
    write_files(tmp_path / "cifar-10-batches-py", cifar_files())
    train, test, class_names = load_kind("cifar10", small_cifar(), tmp_path, download=False)
    assert train.pixels.shape == (5, 3, 32, 32)
    assert train.pixels[1, :, 0, 0].tolist() == [2, 12, 22]
    assert (train.pixels[1] == train.pixels[1, :, :1, :1]).all()
    assert train.pixels.flags.c_contiguous
    assert train.labels.tolist() == [1, 2, 3, 4, 5]
    assert test.labels.tolist() == [6]
    assert class_names == tuple(f"class {c}" for c in range(10))


@pytest.mark.parametrize(
    ("name", "first", "more", "remedy"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1", 5, r"unpack .*cifar-10-python\.tar\.gz in"),
        ("cifar100", "cifar-100-python/train", 1, r"unpack .*cifar-100-python\.tar\.gz in"),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte", 2, r"unpack the \.gz files of .*/MNIST/raw"),
        ("fashion-mnist", "FashionMNIST/raw/train-images-idx3-ubyte", 2, "unpack the .gz files"),
    ],
)
def test_absent_data_are_not_fetched_unasked(
    tmp_path: Path, name: str, first: str, more: int, remedy: str
):
    root = tmp_path / "data"
    message = (
        rf"{name} is not whole in .*/data: .*/{first} is missing, .* {more} more are missing; "
    )
    with pytest.raises(ConfigurationError, match=message + rf".*run --download\), or {remedy}"):
        load(name, root, download=False)
    assert not root.exists()


def test_the_missing_and_the_broken_file_are_named(tmp_path: Path):
    files = cifar_files()
    del files["data_batch_3"], files["batches.meta"]
    files["data_batch_4"] = files["data_batch_4"][:-1]
    write_files(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(ConfigurationError) as caught:
        load_kind("cifar10", small_cifar(), tmp_path, download=False)
    folder = tmp_path / "cifar-10-batches-py"
    assert str(caught.value).startswith(
        f"data set cifar10 is not whole in {tmp_path}: {folder}/data_batch_3 is missing, "
        f"{folder}/batches.meta is missing, {folder}/data_batch_4 is broken "
        "(its MD5 is not that of the original); ask for its download"
    )


TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            TRAIN_IMAGES,
            mnist_files()[TRAIN_IMAGES][:-5],
            "has 35 bytes, but should have 40",
        ),
        (TRAIN_IMAGES, mnist_files()[TRAIN_IMAGES] + b"x", "has 41 bytes, but should have 40"),
        (TRAIN_IMAGES, b"", "it is no idx file of images"),
        (TRAIN_IMAGES, b"<html>", "it is no idx file of images"),
        (TRAIN_IMAGES, mnist_files()[TRAIN_LABELS], "it is no idx file of images"),
        (TRAIN_LABELS, mnist_files()[TRAIN_IMAGES], "it is no idx file of labels"),
        (TRAIN_LABELS, idx(np.arange(3)), "it has 3 labels for 4 images"),
    ],
)
def test_a_broken_file_of_mnist_is_named(tmp_path: Path, name: str, content: bytes, problem: str):
    write_files(tmp_path / "MNIST" / "raw", mnist_files() | {name: content})
    message = rf"not whole in .*: \S*{name} is broken \(.*{problem}\); ask for its download"
    with pytest.raises(ConfigurationError, match=message):
        load("mnist", tmp_path, download=False)


def test_labels_beyond_the_classes_are_refused(tmp_path: Path):
    files = mnist_files() | {TRAIN_LABELS: idx(np.array([0, 1, 2, 10]))}
    write_files(tmp_path / "MNIST" / "raw", files)
    with pytest.raises(
        ConfigurationError, match=r"train labels .* from 0 to 10, .* classes 0 to 9"
    ):
        load_dataset("mnist", tmp_path)


def test_an_asked_for_download_completes_cifar(tmp_path: Path):
    # The archive is there, so nothing is transferred: torchvision only unpacks it.
    files = cifar_files()
    del files["data_batch_3"]
    write_files(tmp_path / "cifar-10-batches-py", files)
    (tmp_path / "small-cifar.tar.gz").write_bytes(cifar_archive())
    train, _, _ = load_kind("cifar10", small_cifar(), tmp_path, download=True)
    assert train.labels.tolist() == [1, 2, 3, 4, 5]


def test_an_asked_for_download_replaces_a_broken_file_of_mnist(tmp_path: Path):
    raw = tmp_path / "SmallMnist" / "raw"
    write_files(raw, mnist_archives() | mnist_files() | {TRAIN_IMAGES: b"half"})
    train, _, _ = load_kind("mnist", small_mnist(), tmp_path, download=True)
    assert train.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert {path.name for path in raw.iterdir()} == mnist_archives().keys() | mnist_files().keys()


def test_a_failed_download_leaves_broken_files_as_they_were(tmp_path: Path):
    raw = tmp_path / "SmallMnist" / "raw"
    files = mnist_files() | {TRAIN_IMAGES: b"half", TRAIN_LABELS: b"third"}
    write_files(raw, files)
    with pytest.raises(ConfigurationError, match="mnist could not be fetched"):
        load_kind("mnist", small_mnist(), tmp_path, download=True)
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == files


def test_what_came_before_a_download_failed_is_kept(tmp_path: Path):
    raw = tmp_path / "SmallMnist" / "raw"
    broken = {TRAIN_IMAGES: b"half", TRAIN_LABELS: b"third"}
    archive = f"{TRAIN_IMAGES}.gz"  # there, so only the labels have to come from nowhere
    write_files(raw, mnist_files() | broken | {archive: mnist_archives()[archive]})
    with pytest.raises(ConfigurationError, match="mnist could not be fetched"):
        load_kind("mnist", small_mnist(), tmp_path, download=True)
    assert (raw / TRAIN_IMAGES).read_bytes() == mnist_files()[TRAIN_IMAGES]
    assert (raw / TRAIN_LABELS).read_bytes() == b"third"


def test_whole_data_need_no_download_even_if_asked_for(tmp_path: Path):
    write_files(tmp_path / "cifar-10-batches-py", cifar_files())
    train, _, _ = load_kind("cifar10", small_cifar(), tmp_path, download=True)  # from nowhere
    assert len(train) == 5


def test_a_root_that_cannot_be_looked_at_is_named(tmp_path: Path):
    root = tmp_path / ("x" * 300)  # longer than a name may be; stops an administrator, too
    for kind in (small_mnist(), small_cifar()):
        with pytest.raises(ConfigurationError, match=r"/xxx\S+ cannot be read \(.+\); check the"):
            load_kind("some", kind, root, download=False)


def test_packed_files_of_mnist_are_read_as_they_are(tmp_path: Path):
    raw = tmp_path / "MNIST" / "raw"
    write_files(raw, mnist_archives())
    train, test, _ = load("mnist", tmp_path, download=False)
    assert train.pixels[:, 0, 1, 2].tolist() == [0, 1, 2, 3]
    assert test.labels.tolist() == [9, 8]
    (raw / f"{TRAIN_IMAGES}.gz").write_bytes(mnist_archives()[f"{TRAIN_IMAGES}.gz"][:-9])
    with pytest.raises(ConfigurationError, match="it is no idx file of images"):
        load("mnist", tmp_path, download=False)


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL))
def test_a_pickle_of_arrays_and_plain_values_is_read(protocol: int):
    batch = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "name": "x"}
    read = known_files.read_pickle(pickle.dumps(batch, protocol))
    np.testing.assert_array_equal(read["data"], batch["data"])
    assert (read["labels"], read["name"]) == ([1, 2], "x")


def test_a_pickle_of_python_2_is_read():
    """As CIFAR's are: its bytes are what later versions take for text."""
    data = bytearray(pickle.dumps(np.uint8([0, 127, 128, 255]), protocol=3))
    for opcode, _, position in list(pickletools.genops(bytes(data))):
        if opcode.name == "SHORT_BINBYTES":
            data[position : position + 1] = pickle.SHORT_BINSTRING
    data[1] = 2  # the protocol
    plain = bytes(data).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert known_files.read_pickle(plain).tolist() == [0, 127, 128, 255]


@pytest.mark.parametrize("value", [Path("x"), print, os.system, {1, 2}.union])
def test_a_pickle_of_anything_else_is_refused(value: object):
    with pytest.raises(pickle.UnpicklingError, match="has no place in a data set"):
        known_files.read_pickle(pickle.dumps({"data": value}))


def test_what_torchvision_knows_of_the_files_is_what_we_know():
    from torchvision import datasets

    for name in ("CIFAR10", "CIFAR100"):
        ours, theirs = getattr(known_files, name), getattr(datasets, name)
        assert (ours.base_folder, ours.url, ours.meta) == (
            theirs.base_folder, theirs.url, theirs.meta,
        )  # fmt: skip
        for part in ("train_list", "test_list"):
            assert list(map(list, getattr(ours, part))) == list(map(list, getattr(theirs, part)))
    for name in ("MNIST", "FashionMNIST"):
        ours, theirs = getattr(known_files, name), getattr(datasets, name)
        assert ours.mirrors[0] == theirs.mirrors[0]
        assert [one for one, _ in ours.resources] == [one for one, _ in theirs.resources]
        assert list(ours.classes) == [one.partition(" - ")[0] for one in theirs.classes]


def test_a_device_without_torch_reads_them(tmp_path: Path):
    write_files(tmp_path / "MNIST" / "raw", mnist_files())
    program = (
        "import sys\n"
        "for name in ('torch', 'torchvision'): sys.modules[name] = None\n"
        "from hfmds.data.sources import load_images\n"
        "print(load_images(sys.argv[1]).labels.tolist())"
    )
    command = [sys.executable, "-c", program, f"mnist:{tmp_path}#train"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[9, 8, 7, 6]\n", "")


@pytest.mark.parametrize(
    ("torchvision", "message"),
    [
        (
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "to fetch data set mnist needs torchvision, which cannot be imported (operator",
        ),
        (
            "raise ModuleNotFoundError(\"No module named 'torch'\")",
            "to fetch data set mnist needs torchvision: install hfmds-fl[torch], or use",
        ),
    ],
)
def test_a_torchvision_that_does_not_work_is_a_clear_error(
    tmp_path: Path, torchvision: str, message: str
):
    write_files(tmp_path, {"torchvision.py": torchvision.encode()})
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from hfmds.data.torchvision_files import load; from hfmds.errors import HfmdsError\n"
        "try: load('mnist', Path('no-data-root'), download=True)\n"
        "except HfmdsError as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout.startswith(message), result.stderr


def test_a_failed_download_says_what_to_do(tmp_path: Path):
    message = r"cifar10 could not be fetched into .* \(.*nowhere.*\); check .*, or unpack file:///n"
    with pytest.raises(ConfigurationError, match=message):
        load_kind("cifar10", small_cifar(), tmp_path, download=True)
    message = r"mnist could not be fetched into .* \(.*nowhere.*\); check .*, or unpack the .gz"
    with pytest.raises(ConfigurationError, match=message):
        load_kind("mnist", small_mnist(), tmp_path, download=True)
