"""How much of the real images the synthetic ones give away, as far as PSNR can tell. Only numpy.

PSNR = 10 log10(1 / MSE) in dB with both images in [0, 1]: the higher, the more alike. It is taken
on the device, over the very pixels that would leave it. This is measured leakage: a low PSNR is
evidence, not proof, that nothing private is left in an image.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.types import LeakageSummary
from hfmds.errors import InvalidInput

IDENTICAL_DB = 100.0
"""Stands for infinity, so that means stay finite: no PSNR is reported above it."""

_CHUNK = 1024  # real images at a time, to bound memory


def psnr_paired(synthetic: NDArray[np.uint8], real: NDArray[np.uint8]) -> NDArray[np.float32]:
    """PSNR of each synthetic image to the real image of the same index."""
    if synthetic.shape != real.shape:
        raise InvalidInput(
            f"images {list(synthetic.shape)} and {list(real.shape)} cannot be compared in pairs"
        )
    difference = _flat(synthetic) - _flat(real)
    return _psnr((difference**2).sum(axis=1), difference.shape[1])


def psnr_nearest(synthetic: NDArray[np.uint8], real: NDArray[np.uint8]) -> NDArray[np.float32]:
    """PSNR of each synthetic image to the real image most like it."""
    if synthetic.shape[1:] != real.shape[1:] or not len(real):
        raise InvalidInput(
            f"images {list(synthetic.shape)} cannot be compared with images {list(real.shape)}"
        )
    made = _flat(synthetic)
    made_squared = (made**2).sum(axis=1, keepdims=True)
    nearest = np.full(len(made), np.inf)
    for start in range(0, len(real), _CHUNK):
        originals = _flat(real[start : start + _CHUNK])
        # |a - b|^2 = |a|^2 - 2ab + |b|^2; exact, since all are whole numbers below 2^53.
        distances = made_squared - 2 * made @ originals.T + (originals**2).sum(axis=1)
        np.minimum(nearest, distances.min(axis=1), out=nearest)
    return _psnr(nearest, made.shape[1])


def summarise_leakage(paired: NDArray[np.float32], nearest: NDArray[np.float32]) -> LeakageSummary:
    """Mean, 99th percentile and maximum of both."""
    if not len(paired) or not len(nearest):
        raise InvalidInput("there is no synthetic image to summarise the leakage of")
    return LeakageSummary(*_statistics(paired), *_statistics(nearest))


def _flat(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    return pixels.reshape(len(pixels), -1).astype(np.float64)


def _psnr(squared_distance: NDArray[np.float64], values: int) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):  # identical images: infinite, capped below
        decibels = 10 * np.log10(255.0**2 * values / squared_distance)
    capped: NDArray[np.float64] = np.minimum(decibels, IDENTICAL_DB)
    return capped.astype(np.float32)


def _statistics(decibels: NDArray[np.float32]) -> tuple[float, float, float]:
    values = decibels.astype(np.float64)
    return float(values.mean()), float(np.percentile(values, 99)), float(values.max())
