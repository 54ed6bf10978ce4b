"""Tiny image folders and torchvision files for tests."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image


def write_image(
    path: Path, value: int = 0, size: tuple[int, int] = (4, 3), mode: str = "L"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 2, 3)).save(path)


def idx(values: np.ndarray) -> bytes:
    """Encode an array in the format of MNIST."""
    header = [256 * 8 + values.ndim, *values.shape]
    return np.array(header, ">i4").tobytes() + values.astype(np.uint8).tobytes()


def mnist_files(train: int = 4, test: int = 2) -> dict[str, bytes]:
    """Make MNIST with 2x3 images. All pixels of image i are i, and its label is 9 - i."""
    files = {}
    for part, count in (("train", train), ("t10k", test)):
        values = np.arange(count)
        pixels = np.broadcast_to(values[:, None, None], (count, 2, 3))
        files[f"{part}-images-idx3-ubyte"] = idx(pixels)
        files[f"{part}-labels-idx1-ubyte"] = idx(9 - values)
    return files


def cifar_files() -> dict[str, bytes]:
    """Make CIFAR-10 with one image per batch. Its pixels and label are the number of the batch."""
    batches = {f"data_batch_{number}": number for number in range(1, 6)} | {"test_batch": 6}
    files = {}
    for name, number in batches.items():
        # Red, green and blue are number, number + 10 and number + 20.
        row = np.repeat(np.uint8([number, number + 10, number + 20]), 1024)[None]
        files[name] = pickle.dumps({"data": row, "labels": [number]})
    files["batches.meta"] = pickle.dumps({"label_names": [f"class {c}" for c in range(10)]})
    return files


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def small_cifar() -> Any:
    """Let torchvision's CIFAR-10 accept `cifar_files`."""
    from torchvision.datasets import CIFAR10

    md5 = {name: _md5(content) for name, content in cifar_files().items()}

    class SmallCifar(CIFAR10):
        train_list: ClassVar = [[f"data_batch_{n}", md5[f"data_batch_{n}"]] for n in range(1, 6)]
        test_list: ClassVar = [["test_batch", md5["test_batch"]]]
        meta: ClassVar = {**CIFAR10.meta, "md5": md5["batches.meta"]}

    return SmallCifar


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()
