"""The similarity of two images, as a distance between small vectors. Uses only numpy.

The vector has two halves of equal weight:

- where the image is bright and coloured: an 8 x 8 grid of means, without brightness and contrast.
  It separates noise-like images, which have edges everywhere.
- where the image has edges: a 4 x 4 grid of rises and falls in x and in y. It separates
  photographs, many of which are half sky.

docs/results/store.md has the measurements behind this choice. All sums are of integers that float64
holds exactly, so an image gives the same vector on every machine.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import LabelledImages

Matrix = NDArray[np.float64]

_COLOUR_GRID, _EDGE_GRID = 8, 4
_HALF = 127  # length of each half of a vector, so that its values fit int8
_MEAN_STEPS = 16  # per grey level
_BLUR = (1, 4, 6, 4, 1)  # removes the noise of single pixels, which is no edge
_SLOPE = (-1, 0, 1)
_CHUNK = 256  # images at a time, to limit memory


def vectors_of(images: LabelledImages) -> NDArray[np.int8]:
    """Return one vector per image, [n, dimensions]."""
    chunks = [_vectors(images.pixels[i : i + _CHUNK]) for i in range(0, len(images), _CHUNK)]
    return np.concatenate(chunks) if chunks else np.empty((0, 0), np.int8)


def max_squared_distance(distance: float) -> float:
    """Return the squared distance of two vectors whose images are `distance` apart, 0 to 1.7."""
    return 2 * (_HALF * distance) ** 2


def _vectors(pixels: NDArray[np.generic]) -> NDArray[np.int8]:
    levels = pixels.astype(np.float64)
    if pixels.dtype != np.uint8:  # from [0, 1]
        levels = np.rint(levels * 255)
    halves = (_colours(levels), _edges(levels.sum(axis=1)))
    return np.concatenate([np.rint(_HALF * half).astype(np.int8) for half in halves], axis=1)


def _colours(levels: Matrix) -> Matrix:
    """Return the means of the grid's cells, centred and scaled to length 1; 0 for a flat image."""
    rows, columns = (_windows(side, _COLOUR_GRID) for side in levels.shape[2:])
    area = rows[0].sum() * columns[0].sum()
    means = np.floor(rows @ levels @ columns.T * _MEAN_STEPS / area).reshape(len(levels), -1)
    centred = means * means.shape[1] - means.sum(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    scaled: Matrix = centred / np.maximum(length, 1)
    return scaled


def _edges(grey: Matrix) -> Matrix:
    """Return each cell's rises and falls, as roots of shares of the sum; 0 for a flat image."""
    blurs = [_neighbours(side, _BLUR) for side in grey.shape[1:]]
    smooth = blurs[0] @ grey @ blurs[1].T
    height, width = grey.shape[1:]
    rows, columns = _windows(height, _EDGE_GRID), _windows(width, _EDGE_GRID)
    slopes = (_neighbours(height, _SLOPE) @ smooth, smooth @ _neighbours(width, _SLOPE).T)
    signed_slopes = [signed for slope in slopes for signed in (slope, -slope)]
    cells = [rows @ np.maximum(slope, 0) @ columns.T for slope in signed_slopes]
    sums = np.stack(cells, axis=1).reshape(len(grey), -1)
    shares: Matrix = sums / np.maximum(sums.sum(axis=1, keepdims=True), 1)
    return np.sqrt(shares)


@lru_cache
def _neighbours(side: int, weights: tuple[int, ...]) -> Matrix:
    """Return the matrix that sums each pixel's weighted neighbours. It repeats the end pixels."""
    matrix = np.zeros((side, side))
    for offset, weight in enumerate(weights, start=-(len(weights) // 2)):
        for at in range(side):
            matrix[at, min(max(at + offset, 0), side - 1)] += weight
    return matrix


@lru_cache
def _windows(side: int, count: int) -> Matrix:
    """Return the matrix that sums `count` equal parts of a line.

    Parts overlap where the length is no multiple of `count`.
    """
    length = -(-side // count)
    matrix = np.zeros((count, side))
    for number in range(count):
        start = number * (side - length) // (count - 1)
        matrix[number, start : start + length] = 1
    return matrix
