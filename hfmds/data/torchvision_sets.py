"""Data sets that torchvision fetches: CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST.

`fetch` converts a set once, on a machine with torchvision, to FOLDER/NAME/train.npz and test.npz.
Every other machine reads these two files with numpy alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hfmds.data.packed import save_npz
from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError

_CLASSES = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
}
NAMES = tuple(_CLASSES)


def fetch(name: str, root: Path, kind: Any = None) -> Path:
    """Fetch a data set of `NAMES` and convert it; return the folder of its two files.

    `kind` is a class like torchvision's, if it is another one than torchvision's own.
    """
    kind = kind or _torchvision_class(name)
    folder = root / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("train", "test"):
            images, class_names = _converted(kind(root, train=part == "train", download=True))
            draft = folder / f".{part}.npz"
            save_npz(draft, images, class_names)
            draft.replace(folder / f"{part}.npz")
    except (RuntimeError, OSError) as error:
        raise ConfigurationError(
            f"data set {name} could not be fetched into {root} ({_in_a_line(error)}); check the "
            "connection and that the folder can be written"
        ) from error
    return folder


def _converted(data: Any) -> tuple[LabelledImages, tuple[str, ...]]:
    """The images of one of torchvision's data sets, and its class names."""
    pixels = np.asarray(data.data)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    labels = np.asarray(data.targets, np.int64)
    class_names = tuple(name.partition(" - ")[0] for name in data.classes)  # "0 - zero"
    return LabelledImages(np.ascontiguousarray(pixels), labels), class_names


def _torchvision_class(name: str) -> Any:
    try:
        from torchvision import datasets  # imports torch
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"fetching data set {name} needs torchvision: install hfmds-fl[torch], or copy "
            f"{name}/train.npz and {name}/test.npz from a machine that has it"
        ) from error
    # A torchvision built for another torch fails in any of these ways.
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise ConfigurationError(
            f"fetching data set {name} needs torchvision, which cannot be imported "
            f"({_in_a_line(error)}); install a torchvision that fits the torch here"
        ) from error
    return getattr(datasets, _CLASSES[name])


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())
