"""Loads the real images of a device: from a folder, a file, or the digits.

A source is one string, so that it fits a setting or a command line:

    /data/shard            a folder with one folder per class: cat/1.jpg, cat/2.jpg, dog/7.png
    /data/shard.npz        the arrays `images`, `labels` and maybe `class_names`: hfmds.data.packed
    /data/shard-images.npy the same images; their labels are in /data/shard-labels.npy
    /data/shard.csv        image files and their classes, with the columns path and label
    digits:20              scikit-learn's 1797 handwritten digits, one channel, scaled to 20x20
    digits:20#train        the same, without every fifth image of each class
    digits:20#test         those fifth images
    digits:20#train@3/20   the images of device 3 (the first is 0) of 20, all of one class

Every fault of a source is a ConfigurationError that names the place and the remedy. This module
needs no torch and no network, and never resizes or reorders images.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from hfmds.data.folders import (
    class_folders,
    image_files,
    is_class_number,
    is_folder,
    looking_at,
    read_images,
)
from hfmds.data.manifests import read_manifest
from hfmds.data.packed import labelled, load_npz, reading_arrays
from hfmds.data.splits import label_skew
from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError

_DIGITS = re.compile(
    r"digits(?::(?P<side>\d+))?(?:#(?P<part>train|test))?(?:@(?P<device>\d+)/(?P<devices>\d{1,4}))?"
)
_DIGITS_SIDE = 8  # in scikit-learn
_TEST_EVERY = 5
_SPLIT_SEED = 0  # all devices must compute the same split


def load_images(source: str, class_names: Sequence[str] = ()) -> LabelledImages:
    """Load all images of a source, in an order that depends on the source alone.

    `class_names` gives class folders their numbers; without it folders are named by number.
    """
    if digits := _DIGITS.fullmatch(source):
        images = _load_digits(int(digits["side"] or _DIGITS_SIDE), digits["part"])
        if digits["device"] is None:
            return images
        return _part_of_device(source, images, int(digits["device"]), int(digits["devices"]))
    path = Path(source)
    if is_folder(path):
        return _load_folder(path, class_names)
    with looking_at(path):
        exists, is_file = path.exists(), path.is_file()
    if is_file and (load := _LOADERS.get(path.suffix)):
        return load(path, class_names)
    problem = "is neither a folder nor a file of a known kind" if exists else "does not exist"
    raise ConfigurationError(
        f"data source {source!r} {problem}; give a folder of class folders, an .npz, .npy or .csv "
        "file, or digits[:SIZE][#train|#test][@DEVICE/DEVICES]"
    )


def is_whole_digits(source: str) -> bool:
    """Whether a source is all digits: those for training and those for tests."""
    digits = _DIGITS.fullmatch(source)
    return digits is not None and digits["part"] is None and digits["device"] is None


def _load_digits(side: int, part: str | None) -> LabelledImages:
    if not _DIGITS_SIDE <= side <= 256:
        raise ConfigurationError(
            f"digits:{side}: the size must be {_DIGITS_SIDE} to 256; paper-cnn needs at least 16"
        )
    try:
        from sklearn.datasets import load_digits  # slow to import
    except ImportError as error:
        raise ConfigurationError(
            "the digits need scikit-learn: install hfmds-fl[cli], or use another data source"
        ) from error
    originals, labels = load_digits(return_X_y=True)
    labels = labels.astype(np.int64)
    grey = (originals.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    scaled = [
        Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR) for image in grey
    ]
    digits = LabelledImages(np.stack([np.asarray(i) for i in scaled])[:, None], labels)
    if part is None:
        return digits
    is_test = np.zeros(len(labels), bool)
    for c in range(10):
        is_test[np.flatnonzero(labels == c)[::_TEST_EVERY]] = True
    return digits.take(np.flatnonzero(is_test if part == "test" else ~is_test))


def _part_of_device(
    source: str, images: LabelledImages, device: int, devices: int
) -> LabelledImages:
    """Return the part of one device: images of a single class, as in the demo."""
    if device >= devices:
        raise ConfigurationError(
            f"{source}: there is no device {device} of {devices}, counted from 0; "
            "write @DEVICE/DEVICES with a larger second number"
        )
    return images.take(label_skew(images.labels, devices, 1, _SPLIT_SEED)[device])


def _load_folder(folder: Path, class_names: Sequence[str]) -> LabelledImages:
    files: list[Path] = []
    labels: list[int] = []
    for class_folder in class_folders(folder):
        label = _label_of(class_folder.name, class_names, f"class folder {class_folder}")
        of_class = image_files(class_folder)
        files += of_class
        labels += [label] * len(of_class)
    if not files:
        raise ConfigurationError(
            f"data folder {folder} has no class folders; put images in one folder per class, "
            f"such as {folder / (class_names[0] if class_names else '0')}"
        )
    return LabelledImages(read_images(files), np.array(labels, np.int64))


def _load_manifest(path: Path, class_names: Sequence[str]) -> LabelledImages:
    files, names = read_manifest(path)
    labels = {name: _label_of(name, class_names, f"{path}: label {name!r}") for name in set(names)}
    return LabelledImages(read_images(files), np.array([labels[name] for name in names], np.int64))


def _label_of(name: str, class_names: Sequence[str], where: str) -> int:
    if class_names:
        if name not in class_names:
            raise ConfigurationError(
                f"{where} is not one of the run's classes ({', '.join(class_names)}); "
                "rename or remove it"
            )
        return list(class_names).index(name)
    if not is_class_number(name):
        raise ConfigurationError(
            f"{where} is not a class number; rename it to one, or give the run class names"
        )
    return int(name)


def _load_npz(path: Path, class_names: Sequence[str]) -> LabelledImages:
    images, own_names = load_npz(path)
    if not own_names:
        return images
    numbers = np.zeros(len(own_names), np.int64)
    for label in np.unique(images.labels).tolist():  # a class without images may be unknown
        name = own_names[label]
        numbers[label] = _label_of(name, class_names, f"{path}: class {name!r}")
    return LabelledImages(images.pixels, numbers[images.labels])


def labels_beside(path: Path) -> Path:
    """Return the file of the labels of the images in an .npy file."""
    before, _, after = path.name.rpartition("images")
    return path.with_name(f"{before}labels{after}")


def _load_npy(path: Path, _: Sequence[str]) -> LabelledImages:
    is_named, beside = "images" in path.name, labels_beside(path)
    remedy = "write images to x-images.npy and labels to x-labels.npy with numpy.save"
    if not is_named or not beside.is_file():
        missing = f"{beside} is missing" if is_named else "its name has no 'images' in it"
        raise ConfigurationError(f"the labels of {path} are not found: {missing}; {remedy}")
    arrays = []
    for file in (path, beside):
        with reading_arrays(file, ".npy", remedy):
            arrays.append(np.load(file, allow_pickle=False))
    return labelled(path, arrays[0], beside, arrays[1])


_LOADERS: dict[str, Callable[[Path, Sequence[str]], LabelledImages]] = {
    ".csv": _load_manifest,
    ".npy": _load_npy,
    ".npz": _load_npz,
}
