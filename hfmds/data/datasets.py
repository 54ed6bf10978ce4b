"""The data sets of experiments: training images, test images, and the names of their classes.

A data set is known by one string:

    cifar10, cifar100      in the data root, as `hfmds data fetch` writes them
    mnist, fashion-mnist   the same, grey
    digits:20              scikit-learn's handwritten digits scaled to 20x20; a fifth is for test
    /data/birds            a folder with train/<class>/*.jpg and test/<class>/*.jpg
    /data/packed           a folder with train.npz and test.npz, as `hfmds data pack` writes them

Every fault of a data set is a ConfigurationError that names the file and the remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.seeds import generator
from hfmds.data import torchvision_sets
from hfmds.data.folders import (
    class_folders,
    describe,
    image_files,
    is_class_number,
    is_folder,
    read_images,
)
from hfmds.data.packed import load_npz
from hfmds.data.sources import is_whole_digits, load_images
from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError

KNOWN = (*torchvision_sets.NAMES, "digits")
"""Known data sets; any other name is a folder."""

Progress = Callable[[str, int, int], None]
"""A function for slow reading: it takes the part ("train" or "test"), images read, all images."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and test images; label i means the class `class_names[i]`."""

    name: str
    train: LabelledImages
    test: LabelledImages
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        for part, images in (("train", self.train), ("test", self.test)):
            if not len(images):
                raise ConfigurationError(f"data set {self.name} has no {part} images")
            low, high = int(images.labels.min()), int(images.labels.max())
            if low < 0 or high >= self.classes:
                raise ConfigurationError(
                    f"{part} labels of data set {self.name} run from {low} to {high}, but it has "
                    f"classes 0 to {self.classes - 1}; correct the labels or the class names"
                )
        train, test = self.train.pixels.shape[1:], self.test.pixels.shape[1:]
        if train != test:
            raise ConfigurationError(
                f"data set {self.name} has {describe(train)} images for training, but "
                f"{describe(test)} ones for test; convert all to one size and colour mode"
            )

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.train.pixels.shape
        return channels, height, width


def load_dataset(
    name: str, root: Path, *, download: bool = False, progress: Progress | None = None
) -> Dataset:
    """Load a data set by its name or folder.

    torchvision's sets are in `root`; only `download` fetches them. A known name is never a folder:
    write ./mnist for a folder of that name.
    """
    if name in torchvision_sets.NAMES:
        return _load_torchvision_set(name, root, download)
    if is_whole_digits(name):
        train, test = load_images(f"{name}#train"), load_images(f"{name}#test")
        return Dataset(name, train, test, tuple("0123456789"))
    folder = Path(name)
    if not is_folder(folder):
        raise ConfigurationError(
            f"data set {name!r} is neither known nor a folder; {_nearest(name)}, "
            f"or give a folder with train/<class>/*.jpg and test/<class>/*.jpg"
        )
    if (folder / "train.npz").is_file():
        return _load_packed(name, folder)
    return _load_folder(name, folder, progress)


def subset(images: LabelledImages, count: int, seed: int) -> LabelledImages:
    """Return `count` images, equally many of each class (or one more), in their order."""
    classes, sizes = np.unique(images.labels, return_counts=True)
    if not len(classes) <= count <= len(images):
        raise ConfigurationError(
            f"a subset of {count} images: must be {len(classes)}, one of each class, to "
            f"{len(images)}, as many as there are"
        )
    random = generator(seed, "subset")
    wanted = count // len(classes) + (np.arange(len(classes)) < count % len(classes))
    chosen: list[NDArray[np.int64]] = []
    for c, n in zip(random.permutation(classes).tolist(), wanted.tolist(), strict=True):
        own = np.flatnonzero(images.labels == c)
        if len(own) < n:
            raise ConfigurationError(
                f"a subset of {count} images needs {n} of class {c}, which has {len(own)}; "
                f"ask for at most {sizes.min() * len(classes)}, {sizes.min()} of each class"
            )
        chosen.append(random.permutation(own)[:n])
    return images.take(np.sort(np.concatenate(chosen)))


def _nearest(name: str) -> str:
    known = ", ".join(name if name != "digits" else "digits[:SIZE]" for name in KNOWN)
    wished = re.split(r"[:#]", name.lower())[0]
    if nearest := difflib.get_close_matches(wished, KNOWN, n=1, cutoff=0.6):
        return f"did you mean {nearest[0]}? Known are {known}"
    return f"known are {known}"


def _load_torchvision_set(name: str, root: Path, download: bool) -> Dataset:
    folder = root / name
    if not ((folder / "train.npz").is_file() and (folder / "test.npz").is_file()):
        if not download:
            raise ConfigurationError(
                f"data set {name} is not in {folder}: fetch it with hfmds data fetch {name} {root}"
            )
        torchvision_sets.fetch(name, root)
    return _load_packed(name, folder)


def _load_packed(name: str, folder: Path) -> Dataset:
    (train, class_names), (test, test_names) = (
        load_npz(folder / f"{part}.npz") for part in ("train", "test")
    )
    if not class_names or class_names != test_names:
        raise ConfigurationError(
            f"{folder}/train.npz and test.npz must have the same class_names; pack both again with "
            "hfmds data pack"
        )
    return Dataset(name, train, test, class_names)


def _load_folder(name: str, folder: Path, progress: Progress | None) -> Dataset:
    parts = {part: _part_files(folder, part) for part in ("train", "test")}
    for part, other in (("train", "test"), ("test", "train")):
        if lacking := sorted(set(parts[other]) - set(parts[part])):
            raise ConfigurationError(
                f"class {lacking[0]!r} of {folder / other} is missing in {folder / part}; "
                f"add {folder / part / lacking[0]} with its images, or remove the class from both"
            )
    by_number = all(is_class_number(c) for c in parts["train"])
    class_names = sorted(parts["train"], key=lambda c: (int(c) if by_number else 0, c))
    images = []
    for part, files_by_class in parts.items():
        files = [file for c in class_names for file in files_by_class[c]]
        labels = np.repeat(
            np.arange(len(class_names)), [len(files_by_class[c]) for c in class_names]
        )
        report = partial(_report, progress, part, len(files)) if progress else None
        images.append(LabelledImages(read_images(files, report), labels))
    return Dataset(name, images[0], images[1], tuple(class_names))


def _part_files(folder: Path, part: str) -> dict[str, list[Path]]:
    """Return the image files by class name."""
    remedy = f"put images in one folder per class, such as {folder / part / 'cat' / '1.jpg'}"
    if not is_folder(folder / part):
        raise ConfigurationError(f"data set folder {folder} has no folder {part!r}; {remedy}")
    files_by_class = {path.name: image_files(path) for path in class_folders(folder / part)}
    if not files_by_class:
        raise ConfigurationError(f"{folder / part} has no class folders; {remedy}")
    return files_by_class


def _report(progress: Progress, part: str, total: int, done: int) -> None:
    progress(part, done, total)
