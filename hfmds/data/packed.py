"""Packed images: one .npz file with arrays, which loads much faster than many image files.

The file holds `images`, uint8 [n, channels, height, width], and `labels`, whole numbers. If it
holds `class_names`, too, label i means the class `class_names[i]`.
"""

from __future__ import annotations

import contextlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError

BROKEN_ARRAYS: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    OverflowError,
    SyntaxError,
    RuntimeError,  # NotImplementedError and RecursionError, too
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""The errors that numpy raises for an .npy or .npz file with wrong content."""

_REMEDY = "write it with hfmds data pack, or numpy.savez(images=..., labels=...)"


def save_npz(path: Path, images: LabelledImages, class_names: Sequence[str] = ()) -> None:
    """Write images to a packed file.

    The file of mixtures also holds their `shares`; as a source of images it has their labels only.
    """
    if path.suffix != ".npz":
        raise ConfigurationError(f"{path}: the file name must end in .npz")
    arrays: dict[str, Any] = {"images": images.pixels, "labels": images.labels}
    if class_names:
        arrays["class_names"] = np.array(class_names, np.str_)
    if images.shares is not None:
        arrays["shares"] = images.shares
    np.savez_compressed(path, **arrays)


def load_npz(path: Path) -> tuple[LabelledImages, tuple[str, ...]]:
    """Read a packed file: its images and, if it has some, its class names."""
    with reading_arrays(path, ".npz", _REMEDY), np.load(path, allow_pickle=False) as arrays:
        if missing := {"images", "labels"} - set(arrays.files):
            raise ConfigurationError(
                f"{path} has arrays {sorted(arrays.files)}, "
                f"but no {' and no '.join(sorted(missing))}; {_REMEDY}"
            )
        pixels, labels = arrays["images"], arrays["labels"]
        names = arrays["class_names"] if "class_names" in arrays.files else np.array([], np.str_)
    images = labelled(path, pixels, path, labels)
    if names.ndim != 1 or names.dtype.kind != "U":
        raise ConfigurationError(
            f"{path}: class_names are {names.dtype} {list(names.shape)}, but must be a list of "
            f"texts; {_REMEDY}"
        )
    if len(names) and not 0 <= images.labels.min() <= images.labels.max() < len(names):
        raise ConfigurationError(
            f"{path}: labels run from {images.labels.min()} to {images.labels.max()}, but there "
            f"are {len(names)} class names; {_REMEDY}"
        )
    return images, tuple(names.tolist())


@contextlib.contextmanager
def reading_arrays(path: Path, kind: str, remedy: str) -> Iterator[None]:
    """Turn the errors of a file of arrays into a ConfigurationError with a remedy."""
    try:
        yield
    except BROKEN_ARRAYS as error:
        raise ConfigurationError(f"{path} cannot be read as {kind} ({error}); {remedy}") from error
    except MemoryError as error:
        raise ConfigurationError(
            f"{path} needs more memory than there is; put fewer or smaller images in it"
        ) from error


def labelled(
    pixels_path: Path, pixels: NDArray[Any], labels_path: Path, labels: NDArray[Any]
) -> LabelledImages:
    """Check arrays of images and labels; the paths name them in errors."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ConfigurationError(
            f"{pixels_path}: images are {pixels.dtype} {list(pixels.shape)}, "
            "but must be uint8 [n, channels, height, width]"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != pixels.shape[:1]:
        raise ConfigurationError(
            f"{labels_path}: labels are {labels.dtype} {list(labels.shape)}, "
            f"but must be whole numbers [{len(pixels)}], one per image"
        )
    if not len(pixels):
        raise ConfigurationError(f"{pixels_path} has no images; a device needs at least one")
    return LabelledImages(pixels, labels.astype(np.int64))
