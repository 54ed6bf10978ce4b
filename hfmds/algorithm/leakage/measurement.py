"""Measures how similar synthetic images are to real ones, by PSNR and SSIM. Only numpy.

PSNR = 10 log10(1 / MSE) in dB with both images in [0, 1]: higher means more alike. SSIM compares
the structure of small windows, and is 1 for equal images. The device measures the very pixels that
would leave it. This is measured leakage: low numbers are evidence that an image holds nothing
private, but no proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.pixels import levels
from hfmds.domain.learning import LabelledImages, LeakageSummary, Pixels, SyntheticBatch
from hfmds.domain.pool_policy import HIGHEST_PSNR_DB
from hfmds.errors import InvalidInput

IDENTICAL_DB = HIGHEST_PSNR_DB

_CHUNK_PIXELS = 1 << 21  # at a time, to bound memory: 16 MB, and temporaries of a few times that
_WINDOW = 7  # side of SSIM's windows in pixels; at most the image's smaller side
_LUMINANCE, _CONTRAST = (0.01 * 255) ** 2, (0.03 * 255) ** 2  # C1 and C2 of Wang et al. (2004)


def measure_leakage(images: LabelledImages, paired_with: Pixels, real: Pixels) -> SyntheticBatch:
    """Measure each synthetic image against its paired real image and against the nearest one."""
    synthetic = images.pixels
    nearest = real[nearest_real(synthetic, real)]
    return SyntheticBatch(
        images,
        psnr_paired=psnr_paired(synthetic, paired_with),
        psnr_nearest=psnr_paired(synthetic, nearest),
        ssim_paired=ssim_paired(synthetic, paired_with),
        ssim_nearest=ssim_paired(synthetic, nearest),
    )


def psnr_paired(synthetic: Pixels, real: Pixels) -> NDArray[np.float32]:
    """Compute the PSNR of each synthetic image to the real image of the same index."""
    _require_pairs(synthetic, real)
    difference = _flat(synthetic) - _flat(real)
    return _psnr((difference**2).sum(axis=1), difference.shape[1])


def ssim_paired(synthetic: Pixels, real: Pixels) -> NDArray[np.float32]:
    """Compute the SSIM of each synthetic image to the real image of the same index.

    Like Wang et al. (2004), but with square windows instead of Gaussian ones. The result is the
    mean over all windows within the image and over channels.
    """
    _require_pairs(synthetic, real)
    chunks = [_ssim(synthetic[part], real[part]) for part in _chunks(synthetic)]
    return np.concatenate([np.empty(0, np.float32), *chunks])


def psnr_nearest(synthetic: Pixels, real: Pixels) -> NDArray[np.float32]:
    """Compute the PSNR of each synthetic image to the nearest real image."""
    return psnr_paired(synthetic, real[nearest_real(synthetic, real)])


def nearest_real(synthetic: Pixels, real: Pixels) -> NDArray[np.int64]:
    """Find the index of the nearest real image by PSNR; of equally near images the first."""
    if synthetic.shape[1:] != real.shape[1:] or not len(real):
        raise InvalidInput(
            f"images {list(synthetic.shape)} cannot be compared with images {list(real.shape)}"
        )
    values = _flat(synthetic)
    squares = (values**2).sum(axis=1, keepdims=True)
    least = np.full(len(values), np.inf)
    nearest = np.zeros(len(values), np.int64)
    for part in _chunks(real):
        originals = _flat(real[part])
        # |a - b|^2 = |a|^2 - 2ab + |b|^2. For uint8 it is exact: integers below 2^53.
        distances = squares - 2 * values @ originals.T + (originals**2).sum(axis=1)
        nearer = distances.min(axis=1) < least
        nearest[nearer] = part.start + distances.argmin(axis=1)[nearer]
        np.minimum(least, distances.min(axis=1), out=least)
    return nearest


def summarise_leakage(paired: NDArray[np.float32], nearest: NDArray[np.float32]) -> LeakageSummary:
    """Compute mean, 99th percentile and maximum of both."""
    if not len(paired) or not len(nearest):
        raise InvalidInput("there is no synthetic image to summarise the leakage of")
    return LeakageSummary(*_statistics(paired), *_statistics(nearest))


def _require_pairs(synthetic: Pixels, real: Pixels) -> None:
    if synthetic.shape != real.shape:
        raise InvalidInput(
            f"images {list(synthetic.shape)} and {list(real.shape)} cannot be compared in pairs"
        )


def _chunks(pixels: Pixels) -> Iterator[slice]:
    """Yield slices of a bounded number of pixels, of at least one image."""
    many = max(1, _CHUNK_PIXELS // max(1, math.prod(pixels.shape[1:])))
    for start in range(0, len(pixels), many):
        yield slice(start, start + many)


def _levels(pixels: Pixels) -> NDArray[np.float64]:
    return levels(pixels).astype(np.float64)


def _flat(pixels: Pixels) -> NDArray[np.float64]:
    return _levels(pixels).reshape(len(pixels), -1)


def _ssim(synthetic: Pixels, real: Pixels) -> NDArray[np.float32]:
    x, y = _levels(synthetic), _levels(real)
    side = min(_WINDOW, *synthetic.shape[2:])
    mean_x, mean_y = _window_means(x, side), _window_means(y, side)
    variances = _window_means(x * x + y * y, side) - mean_x**2 - mean_y**2
    covariance = _window_means(x * y, side) - mean_x * mean_y
    similarity = (2 * mean_x * mean_y + _LUMINANCE) * (2 * covariance + _CONTRAST)
    similarity /= (mean_x**2 + mean_y**2 + _LUMINANCE) * (variances + _CONTRAST)
    mean: NDArray[np.float64] = similarity.mean(axis=(1, 2, 3))
    return np.clip(mean, -1, 1).astype(np.float32)


def _window_means(values: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """Compute the mean over every square window of [n, channels, height, width]."""
    for axis in (2, 3):
        before = [(1, 0) if dimension == axis else (0, 0) for dimension in range(4)]
        sums = np.pad(values.cumsum(axis), before)
        ends = np.arange(side, sums.shape[axis])
        values = sums.take(ends, axis) - sums.take(ends - side, axis)
    return values / side**2


def _psnr(squared_distance: NDArray[np.float64], values: int) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):  # identical images: infinite, capped below
        decibels = 10 * np.log10(255.0**2 * values / squared_distance)
    capped: NDArray[np.float64] = np.minimum(decibels, IDENTICAL_DB)
    return capped.astype(np.float32)


def _statistics(decibels: NDArray[np.float32]) -> tuple[float, float, float]:
    values = decibels.astype(np.float64)
    return float(values.mean()), float(np.percentile(values, 99)), float(values.max())
