"""Image files in class folders: cat/1.jpg, cat/2.jpg, dog/7.png.

The caller chooses the labels of the classes. Images are uint8 [channels, height, width],
one channel if grey; nothing is resized, so all must be of one size.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from hfmds.errors import ConfigurationError

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

# Files next to images that are no images.
_NOTE_SUFFIXES = frozenset({".csv", ".json", ".md", ".txt", ".xml"})
_CLUTTER = frozenset({"desktop.ini", "thumbs.db"})

# Pillow's conversion of other modes clips instead of scaling: 16-bit images become white.
_EIGHT_BIT_MODES = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX"})
_EIGHT_BIT_MODES |= {"CMYK", "YCbCr", "HSV", "LAB"}
_REPORT_EVERY = 500  # images


@contextlib.contextmanager
def looking_at(path: Path) -> Iterator[None]:
    """Turn errors of a path (no permission, a bad disk) into a ConfigurationError that names it."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or path} cannot be read ({error.strerror or error}); "
            "check the path and its permissions"
        ) from error


def is_folder(path: Path) -> bool:
    """Whether there is a folder; a missing permission is an error."""
    with looking_at(path):
        return path.is_dir()


def class_folders(folder: Path) -> list[Path]:
    """Return the visible folders in a folder, sorted by name."""
    with looking_at(folder):
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def is_class_number(name: str) -> bool:
    """Whether the name of a class folder is a number, so that `int` takes it."""
    return re.fullmatch(r"[0-9]+", name) is not None


def image_files(class_folder: Path) -> list[Path]:
    """Return the images of one class, sorted by name; refuse files that may be other images.

    Hidden files are ignored: macOS puts a ._1.jpg, which is no image, next to 1.jpg.
    """
    with looking_at(class_folder):
        visible = sorted(p for p in class_folder.iterdir() if not p.name.startswith("."))
        files = [p for p in visible if p.suffix.lower() in IMAGE_SUFFIXES]
        if len(files) < len(visible):
            _refuse_strangers(p for p in visible if p.suffix.lower() not in IMAGE_SUFFIXES)
    if not files:
        raise ConfigurationError(
            f"class folder {class_folder} has no images; add some "
            f"({', '.join(sorted(IMAGE_SUFFIXES))}) or remove the folder"
        )
    return files


def read_images(
    files: Sequence[Path], report: Callable[[int], None] | None = None
) -> NDArray[np.uint8]:
    """Read the images of at least one file, in their order; `report` takes the number so far.

    One thread: for small images most of the work is Python's own, which is not parallel.
    """
    first = _read_image(files[0])
    try:
        return _read_like(first, files, report)
    except MemoryError as error:
        raise ConfigurationError(
            f"the {len(files)} images of {files[0].parent.parent}, each {describe(first.shape)}, "
            f"need {len(files) * first.size / 1e9:.1f} GB, more than there is memory; "
            "make them smaller, or put a subset of them in another folder"
        ) from error


def describe(shape: Sequence[int]) -> str:
    """Return the form of an image, [channels, height, width], in words."""
    channels, height, width = shape
    return f"{height}x{width} {'grey' if channels == 1 else 'colour'}"


def _refuse_strangers(paths: Iterable[Path]) -> None:
    """Refuse files that may be images but cannot be read."""
    for path in paths:
        if path.is_dir():
            raise ConfigurationError(
                f"class folder {path.parent} has a folder {path.name!r} in it; put its images "
                f"in {path.parent} itself, or move it away"
            )
        if path.suffix.lower() not in _NOTE_SUFFIXES and path.name.lower() not in _CLUTTER:
            raise ConfigurationError(
                f"{path} is of an unknown kind (known: {', '.join(sorted(IMAGE_SUFFIXES))}); "
                "convert or remove it"
            )


def _read_like(
    first: NDArray[np.uint8], files: Sequence[Path], report: Callable[[int], None] | None
) -> NDArray[np.uint8]:
    pixels = np.empty((len(files), *first.shape), np.uint8)
    for count, file in enumerate(files, start=1):
        image = _read_image(file)
        if image.shape != first.shape:
            raise ConfigurationError(
                f"{file} is {describe(image.shape)}, but {files[0]} is {describe(first.shape)}; "
                "convert all images to one size and colour mode"
            )
        pixels[count - 1] = image
        if report and (count % _REPORT_EVERY == 0 or count == len(files)):
            report(count)
    return pixels


def _read_image(file: Path) -> NDArray[np.uint8]:
    """Read an image as [channels, height, width]: one channel if grey, else three."""
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
