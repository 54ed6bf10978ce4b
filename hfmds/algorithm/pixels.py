"""Between pixels (uint8) and the normalised space the model sees. Only numpy: engines share it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.recipes import Normalisation


def normalise(pixels: NDArray[np.uint8], by: Normalisation) -> NDArray[np.float32]:
    """(pixel / 255 - mean) / std, per channel of [n, channels, height, width]."""
    mean, std = _per_channel(by)
    return (pixels.astype(np.float32) / np.float32(255) - mean) / std


def to_pixels(normalised: NDArray[np.float32], by: Normalisation) -> NDArray[np.uint8]:
    """The inverse of `normalise`: clamped to valid pixels, rounded to the nearest."""
    mean, std = _per_channel(by)
    unit: NDArray[np.float32] = np.clip(normalised * std + mean, 0, 1)
    return (unit * np.float32(255)).round().astype(np.uint8)


def _per_channel(by: Normalisation) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mean = np.array(by.mean, np.float32).reshape(-1, 1, 1)
    std = np.array(by.std, np.float32).reshape(-1, 1, 1)
    return mean, std
