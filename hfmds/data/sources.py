"""Where a device's real images come from: a folder, an .npz file, or the built-in digits.

A source is one string, so that it fits a setting or a command line:

    /data/shard            a folder with one folder per class: cat/1.jpg, cat/2.jpg, dog/7.png
    /data/shard.npz        `images`, uint8 [n, channels, height, width], and `labels`, whole numbers
    digits:20              scikit-learn's 1797 handwritten digits, one channel, scaled to 20x20
    digits:20#train        the same, without every fifth image of each class
    digits:20#test         those fifth images

Whatever is wrong with a source is a ConfigurationError that says where and what to do about it.
Knows no torch and no network, and never resizes or reorders an operator's images.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from hfmds.algorithm.types import LabelledImages
from hfmds.errors import ConfigurationError

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

_DIGITS = re.compile(r"digits(?::(?P<side>\d+))?(?:#(?P<part>train|test))?")
_DIGITS_SIDE = 8  # as scikit-learn has them
_TEST_EVERY = 5
# Pillow's conversion of the others clips instead of scaling: a 16-bit image would come out white.
_EIGHT_BIT_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX"})
_EIGHT_BIT_MODES |= {"CMYK", "YCbCr", "HSV", "LAB"}


def load_images(source: str, class_names: Sequence[str] = ()) -> LabelledImages:
    """All images of a source, in an order that depends on the source alone.

    `class_names` gives class folders their numbers; without it folders are named by number.
    """
    if digits := _DIGITS.fullmatch(source):
        return _load_digits(int(digits["side"] or _DIGITS_SIDE), digits["part"])
    path = Path(source)
    if path.is_dir():
        return _load_folder(path, class_names)
    if path.is_file() and path.suffix == ".npz":
        return _load_npz(path)
    problem = "is neither a folder nor an .npz file" if path.exists() else "does not exist"
    raise ConfigurationError(
        f"data source {source!r} {problem}; "
        "give a folder of class folders, an .npz file, or digits[:SIZE][#train|#test]"
    )


def save_npz(path: Path, images: LabelledImages) -> None:
    """Write images so that `load_images` reads them back."""
    if path.suffix != ".npz":
        raise ConfigurationError(f"{path}: the file name must end in .npz")
    np.savez_compressed(path, images=images.pixels, labels=images.labels)


def _load_digits(side: int, part: str | None) -> LabelledImages:
    if not _DIGITS_SIDE <= side <= 256:
        raise ConfigurationError(
            f"digits:{side}: the size must be {_DIGITS_SIDE} to 256; paper-cnn needs at least 16"
        )
    try:
        from sklearn.datasets import load_digits  # heavy, and only needed here
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


def _load_folder(folder: Path, class_names: Sequence[str]) -> LabelledImages:
    pixels: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    first: Path | None = None
    for class_folder in sorted(p for p in folder.iterdir() if _is_visible_folder(p)):
        label = _label_of(class_folder, class_names)
        files = sorted(p for p in class_folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        if not files:
            raise ConfigurationError(
                f"class folder {class_folder} has no images; add some "
                f"({', '.join(sorted(IMAGE_SUFFIXES))}) or remove the folder"
            )
        for file in files:
            image = _read_image(file)
            first = first or file
            if pixels and image.shape != pixels[0].shape:
                raise ConfigurationError(
                    f"{file} is {_describe(image)}, but {first} is {_describe(pixels[0])}; "
                    "convert all images to one size and colour mode"
                )
            pixels.append(image)
            labels.append(label)
    if not pixels:
        raise ConfigurationError(
            f"data folder {folder} has no class folders; put images in one folder per class, "
            f"such as {folder / (class_names[0] if class_names else '0')}"
        )
    return LabelledImages(np.stack(pixels), np.array(labels, np.int64))


def _is_visible_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _label_of(class_folder: Path, class_names: Sequence[str]) -> int:
    name = class_folder.name
    if class_names:
        if name not in class_names:
            raise ConfigurationError(
                f"class folder {class_folder} is not one of the run's classes "
                f"({', '.join(class_names)}); rename or remove it"
            )
        return list(class_names).index(name)
    if not re.fullmatch(r"[0-9]+", name):
        raise ConfigurationError(
            f"class folder {class_folder} is not a class number; "
            "rename it to one, or give the run class names"
        )
    return int(name)


def _read_image(file: Path) -> NDArray[np.uint8]:
    """[channels, height, width]: one channel for a grey image, three for any other."""
    try:
        with Image.open(file) as image:
            if image.mode not in _EIGHT_BIT_MODES:
                raise ConfigurationError(
                    f"{file} has pixels of kind {image.mode!r}, more than 8 bits each; "
                    "convert it to 8 bits"
                )
            grey = image.mode in ("1", "L")
            values = np.asarray(image.convert("L" if grey else "RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else error
        raise ConfigurationError(
            f"{file} cannot be read ({reason}); replace or remove it"
        ) from error
    return values[None] if grey else values.transpose(2, 0, 1)


def _describe(image: NDArray[np.uint8]) -> str:
    channels, height, width = image.shape
    return f"{height}x{width} {'grey' if channels == 1 else 'colour'}"


def _load_npz(path: Path) -> LabelledImages:
    remedy = "write it with hfmds.data.sources.save_npz, or numpy.savez(images=..., labels=...)"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if missing := {"images", "labels"} - set(arrays.files):
                raise ConfigurationError(
                    f"{path} has arrays {sorted(arrays.files)}, "
                    f"but no {' and no '.join(sorted(missing))}; {remedy}"
                )
            pixels, labels = arrays["images"], arrays["labels"]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path} cannot be read as .npz ({error}); {remedy}") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ConfigurationError(
            f"{path}: images are {pixels.dtype} {list(pixels.shape)}, "
            "but must be uint8 [n, channels, height, width]"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != pixels.shape[:1]:
        raise ConfigurationError(
            f"{path}: labels are {labels.dtype} {list(labels.shape)}, "
            f"but must be whole numbers [{len(pixels)}], one per image"
        )
    if not len(pixels):
        raise ConfigurationError(f"{path} has no images; a device needs at least one")
    return LabelledImages(pixels, labels.astype(np.int64))
