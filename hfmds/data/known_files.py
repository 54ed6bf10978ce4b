"""The files of CIFAR and MNIST as their authors give them away: which they are, what is in them.

Attributes have the names that torchvision's classes give them, which can fetch such files. Reading
needs numpy alone. CIFAR's files are pickles: nothing but arrays, texts, numbers, lists and dicts is
made of them.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import LabelledImages

_UNSIGNED_BYTES = 8  # idx's code for the only type these files have
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # what numpy makes its arrays with; its place moves
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


class CIFAR10:
    """Five batches of 10,000 images, and one to test on."""

    base_folder = "cifar-10-batches-py"
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    train_list = (
        ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
        ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        ("data_batch_4", "634d18415352ddfa80567beed471001a"),
        ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
    )
    test_list = (("test_batch", "40351d587109b95175f43aff81a1287e"),)
    meta = {  # noqa: RUF012 (never changed)
        "filename": "batches.meta",
        "key": "label_names",
        "md5": "5ff9c542aee3614f3951f8cda6e48888",
    }


class CIFAR100:
    """All images in one file; of its two sets of labels the finer."""

    base_folder = "cifar-100-python"
    url = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    train_list = (("train", "16019d7e3df5f24257cddd939b257f8d"),)
    test_list = (("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),)
    meta = {  # noqa: RUF012 (never changed)
        "filename": "meta",
        "key": "fine_label_names",
        "md5": "7973b15100ade9c7d40fb424638fde48",
    }


class MNIST:
    """Handwritten digits."""

    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/",)
    resources = tuple(
        (f"{part}-{what}-ubyte.gz", "")
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    )
    classes = tuple(map(str, range(10)))


class FashionMNIST:
    """Clothes, in files as MNIST's."""

    mirrors = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
    resources = MNIST.resources
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    )  # fmt: skip


def read_cifar(files: Any, root: Path) -> tuple[LabelledImages, LabelledImages, tuple[str, ...]]:
    """Training images, test images and class names. The files are known to be the originals."""
    folder = root / files.base_folder

    def part(names: Any) -> LabelledImages:
        batches = [read_pickle((folder / name).read_bytes()) for name, _ in names]
        labels = [batch.get("labels", batch.get("fine_labels")) for batch in batches]
        pixels = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
        return LabelledImages(np.ascontiguousarray(pixels), np.concatenate(labels).astype(np.int64))

    named = read_pickle((folder / files.meta["filename"]).read_bytes())
    return part(files.train_list), part(files.test_list), tuple(named[files.meta["key"]])


def read_pickle(data: bytes) -> Any:
    """What was pickled, of arrays and plain values; UnpicklingError if there is anything else."""
    return _Arrays(io.BytesIO(data), encoding="latin1").load()  # written by Python 2


class _Arrays(pickle.Unpickler):
    """Finds no functions to call but those that make arrays."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a data set") from None


def idx_bytes(path: Path) -> bytes | None:
    """An idx file, as it is or packed beside its place (.gz); None if there is neither."""
    if path.is_file():
        return path.read_bytes()
    packed = path.with_name(f"{path.name}.gz")
    if not packed.is_file():
        return None
    try:
        return gzip.decompress(packed.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return b""  # which is no idx file either


def idx_shape(data: bytes, dimensions: int) -> tuple[int, ...] | None:
    """What the header says: a type and a number of dimensions, then the dimensions."""
    header = struct.Struct(f">{1 + dimensions}I")
    if len(data) < header.size:
        return None
    magic, *shape = header.unpack(data[: header.size])
    return tuple(shape) if magic == 256 * _UNSIGNED_BYTES + dimensions else None


def read_idx(files: Any, folder: Path) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images. The files are known to be whole."""
    found: list[NDArray[np.uint8]] = []
    for resource, _ in files.resources:
        data = idx_bytes(folder / Path(resource).stem) or b""
        dimensions = data[3]
        shape = idx_shape(data, dimensions)
        found.append(np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape or ()))
    images, labels, test_images, test_labels = found
    return (
        LabelledImages(images[:, None].copy(), labels.astype(np.int64)),
        LabelledImages(test_images[:, None].copy(), test_labels.astype(np.int64)),
    )
