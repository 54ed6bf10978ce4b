"""Converts between pixels and the normalised space of the model. Only numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import Pixels
from hfmds.domain.recipe import Normalisation


def levels(pixels: Pixels) -> NDArray[np.float32]:
    """Return pixels of either type as grey levels, 0 to 255."""
    values = pixels.astype(np.float32)
    return values if pixels.dtype == np.uint8 else values * np.float32(255)


def as_uint8(pixels: Pixels) -> NDArray[np.uint8]:
    """Round pixels of either type to whole grey levels."""
    return levels(pixels).round().astype(np.uint8)


def of_levels(values: NDArray[np.floating], pixel_type: str) -> Pixels:
    """Convert grey levels to pixels of the recipe's type, rounded to the nearest."""
    if pixel_type == "fp16":
        return (values / 255).astype(np.float16)
    return values.round().astype(np.uint8)


def normalise(pixels: Pixels, by: Normalisation) -> NDArray[np.float32]:
    """(pixel / 255 - mean) / std, per channel of [n, channels, height, width]."""
    mean, std = _per_channel(by)
    return (levels(pixels) / np.float32(255) - mean) / std


def to_pixels(
    normalised: NDArray[np.float32], by: Normalisation, pixel_type: str = "uint8"
) -> Pixels:
    """Invert `normalise`: clamp to valid pixels, and round to the nearest."""
    mean, std = _per_channel(by)
    unit: NDArray[np.float32] = np.clip(normalised * std + mean, 0, 1)
    return of_levels(unit * np.float32(255), pixel_type)


def _per_channel(by: Normalisation) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    mean = np.array(by.mean, np.float32).reshape(-1, 1, 1)
    std = np.array(by.std, np.float32).reshape(-1, 1, 1)
    return mean, std
