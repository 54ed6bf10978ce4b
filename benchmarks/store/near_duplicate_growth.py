"""How does the search for near duplicates grow with the number of images?

    python -m benchmarks.store.near_duplicate_growth [--sizes 10000 100000 1000000] [--quick]

One index, as the store makes it for a class when it seals a pool, grows image by image. The images
are noise, the hardest case for an index, and similar to synthetic images. At each size the script
asks for known images with added noise, which the index should find, and for new ones. The baseline
is an exact search through all vectors with NumPy.

Times are mean processor times of one thread. Memory is the growth of the process, without the
vectors of the exact search.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.programs import MEGABYTE, print_progress, print_result, usage, warn_if_busy
from hfmds.domain.learning import LabelledImages
from synthesis_store.snapshots.near_duplicates import SimilarityIndex
from synthesis_store.snapshots.similarity import vectors_of

SHAPE = (3, 32, 32)
THRESHOLD = 0.35
_AT_ONCE = 1000
_NOISE = 16  # grey levels, added to known images
_EXACT_LOOKUPS = 20
_BLOCK = 10_000  # vectors at a time in the exact search

Vectors = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class SizeResult:
    """The results at one size."""

    images: int
    lookup_seconds: float
    add_seconds: float
    exact_seconds: float
    found: float  # of the known images
    invented: float  # of the new ones
    index_bytes: int


def noise_images(random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Make noise images."""
    return random.integers(0, 256, (count, *SHAPE), np.uint8)


def vectors(pixels: NDArray[np.uint8]) -> Vectors:
    """Make vectors as the store does."""
    return vectors_of(LabelledImages(pixels, np.zeros(len(pixels), np.int64)))


def with_noise(random: np.random.Generator, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Add noise that a person would not notice."""
    noisy = pixels + random.normal(0, _NOISE, pixels.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def exact_nearest(known: Vectors, wanted: Vectors) -> int:
    """Return the index of the nearest vector by exact search."""
    squares = np.empty(len(known), np.float32)
    row = wanted.astype(np.float32)
    for start in range(0, len(known), _BLOCK):
        difference = known[start : start + _BLOCK].astype(np.float32) - row
        squares[start : start + _BLOCK] = np.einsum("ij,ij->i", difference, difference)
    return int(squares.argmin())


def mean_seconds(act: Callable[[NDArray[np.int8]], object], rows: Vectors) -> float:
    """Return processor time for a row."""
    started = time.process_time()
    for row in rows:
        act(row)
    return (time.process_time() - started) / len(rows)


class Growth:
    """An index that grows, with its queries."""

    def __init__(self, largest: int) -> None:
        self._random = np.random.default_rng(0)
        self._index = SimilarityIndex(THRESHOLD)
        # Touched at once, so that it counts as the beginning's memory.
        self._known = np.ones((largest, vectors(noise_images(self._random, 1)).shape[1]), np.int8)
        self._kept = np.empty((0, *SHAPE), np.uint8)  # the first images, to ask for
        self._bytes_before = usage(os.getpid()).rss_bytes
        self._add_seconds = 0.0

    def grow(self, size: int) -> None:
        """Add images up to a number."""
        while len(self._index) < size:
            pixels = noise_images(self._random, min(_AT_ONCE, size - len(self._index)))
            if not len(self._kept):
                self._kept = pixels
            rows = vectors(pixels)
            self._known[len(self._index) : len(self._index) + len(rows)] = rows
            self._add_seconds = mean_seconds(self._index.add, rows)
            if len(self._index) % (100 * _AT_ONCE) == 0:
                print_progress(
                    f"{len(self._index)} images, adding one takes {self._add_seconds * 1e6:.0f} us"
                )

    def measure(self) -> SizeResult:
        """Measure queries at the current size."""
        known = self._known[: len(self._index)]
        alike = vectors(with_noise(self._random, self._kept))
        new = vectors(noise_images(self._random, _AT_ONCE))
        found = [self._index.nearest(row) for row in alike]
        both = np.concatenate([alike, new])
        return SizeResult(
            len(known),
            mean_seconds(self._index.nearest, both),
            self._add_seconds,
            mean_seconds(lambda row: exact_nearest(known, row), alike[:_EXACT_LOOKUPS]),
            float(np.mean([number == one for number, one in enumerate(found)])),
            float(np.mean([self._index.nearest(row) is not None for row in new])),
            usage(os.getpid()).rss_bytes - self._bytes_before,
        )


def main() -> None:
    """Grow the index, measure at each size, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--quick", action="store_true", help="run seconds, only to see that it works"
    )
    options = parser.parse_args()
    sizes = [1_000, 4_000] if options.quick else sorted(options.sizes)
    warn_if_busy()
    growth = Growth(sizes[-1])
    rows = []
    for size in sizes:
        growth.grow(size)
        rows.append(growth.measure())
        print_progress(f"{rows[-1]}")
    first = rows[0]
    print_result(
        "| images | lookup, us | against the first | adding, us | against the first "
        "| exact lookup, us | against the first | found | invented | memory, MB |"
    )
    print_result("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print_result(
            f"| {row.images:,} "
            f"| {row.lookup_seconds * 1e6:.0f} | {row.lookup_seconds / first.lookup_seconds:.1f}x "
            f"| {row.add_seconds * 1e6:.0f} | {row.add_seconds / first.add_seconds:.1f}x "
            f"| {row.exact_seconds * 1e6:.0f} | {row.exact_seconds / first.exact_seconds:.1f}x "
            f"| {row.found:.1%} | {row.invented:.1%} | {row.index_bytes / MEGABYTE:.0f} |"
        )


if __name__ == "__main__":
    main()
