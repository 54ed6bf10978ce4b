"""Which distance finds near duplicates and keeps different images apart?

    python -m benchmarks.store.near_duplicate_distances DATASET [--images 10000] [--synthetic 2000]

DATASET is CIFAR-10, as for `hfmds experiment`: a folder with train/<class>/*.jpg, or cifar10 with
--data-root. The script looks at photographs of the data set, and at synthetic images that it makes
from them (hard feature matching, a network trained for two epochs).

Found: the share of images whose changed copy is within the threshold. False: the share of images
whose nearest *other* image is within the threshold. For photographs only other classes count as
false, because CIFAR-10 has near duplicates within a class; a second column has all. All comparisons
are exact and use no index.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.shared.programs import print_progress, print_result
from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.building import initial_weights
from hfmds.data.datasets import load_dataset, subset
from hfmds.data.statistics import normalisation_of
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Recipe, TrainingRecipe
from synthesis_store.snapshots.similarity import max_squared_distance, vectors_of

Pixels = NDArray[np.uint8]
Vectors = NDArray[np.float32]
Row = tuple[Sequence[str], Mapping[str, float]]
"""Cells, then the share found of each change."""

FALSE_RATE = 0.0005  # at which measures are compared
THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
_QUERIES = 2000
_ROWS = 1000  # compared with all others at a time
_TRAINED_ON = 5000
_PER_DEVICE = 200
_STEPS = 100  # of synthesis: a fifth of the paper's, after which images look the same

# --- what may happen to an image ----------------------------------------------------------------


def moved(pixels: Pixels, by: int) -> Pixels:
    """Move images to the left and down; the border is mirrored."""
    side = pixels.shape[2]
    padded = np.pad(pixels, ((0, 0), (0, 0), (by, by), (by, by)), mode="reflect")
    return padded[:, :, :side, 2 * by : 2 * by + side]


def with_noise(pixels: Pixels, deviation: float) -> Pixels:
    """Add Gaussian noise of a number of grey levels."""
    return _rounded(pixels + np.random.default_rng(1).normal(0, deviation, pixels.shape))


def as_jpeg(pixels: Pixels, quality: int) -> Pixels:
    """Compress and decompress images as JPEG."""
    changed = []
    for image in pixels:
        file = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG", quality=quality)
        changed.append(np.asarray(Image.open(file)).transpose(2, 0, 1))
    return np.stack(changed)


def relit(pixels: Pixels, contrast: float, brightness: float) -> Pixels:
    """Change contrast around the middle grey and clip."""
    return _rounded((pixels.astype(np.float64) - 128) * contrast + 128 + brightness)


def _rounded(values: NDArray[np.float64]) -> Pixels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


CHANGES: Mapping[str, Callable[[Pixels], Pixels]] = {
    "moved 1 px": partial(moved, by=1),
    "moved 2 px": partial(moved, by=2),
    "noise 8": partial(with_noise, deviation=8),
    "noise 16": partial(with_noise, deviation=16),
    "noise 32": partial(with_noise, deviation=32),
    "JPEG 75": partial(as_jpeg, quality=75),
    "JPEG 50": partial(as_jpeg, quality=50),
    "JPEG 25": partial(as_jpeg, quality=25),
    "brighter by 40": partial(relit, contrast=1, brightness=40),
    "contrast 0.7": partial(relit, contrast=0.7, brightness=0),
    "contrast 1.4": partial(relit, contrast=1.4, brightness=0),
    "flipped": lambda pixels: pixels[:, :, :, ::-1],
}

# --- measures of likeness: vectors whose distance is small for images that look alike -----------


def ours(pixels: Pixels) -> Vectors:
    """Make the store's vectors, in the unit of its thresholds."""
    images = LabelledImages(pixels, np.zeros(len(pixels), np.int64))
    return (vectors_of(images) / np.sqrt(max_squared_distance(1))).astype(np.float32)


def colours(pixels: Pixels) -> Vectors:
    """Make the first half of our vectors."""
    return ours(pixels)[:, : 64 * pixels.shape[1]]


def edges(pixels: Pixels) -> Vectors:
    """Make the second half of our vectors."""
    return ours(pixels)[:, 64 * pixels.shape[1] :]


def greys(pixels: Pixels) -> Vectors:
    """Make the first half of our vectors without colours."""
    return colours(pixels.mean(axis=1, keepdims=True).astype(np.uint8))


def cosine_signs(pixels: Pixels) -> Vectors:
    """Make the usual perceptual hash: which of the 63 lowest frequencies exceed the median."""
    side = pixels.shape[2]
    at = np.arange(side)
    cosines = np.cos(np.pi * (2 * at + 1) * at[:, None] / (2 * side))[:8]
    grey = pixels.mean(axis=1)
    lowest = (cosines @ grey @ cosines.T).reshape(len(pixels), -1)[:, 1:]
    above = lowest > np.median(lowest, axis=1, keepdims=True)
    return above.astype(np.float32)  # the square of a distance is then the number of unlike bits


MEASURES: Mapping[str, Callable[[Pixels], Vectors]] = {
    "grey means, 8 x 8": greys,
    "colour means, 8 x 8": colours,
    "signs of cosine transform (pHash)": cosine_signs,
    "edges, 4 x 4": edges,
    "colour means and edges (ours)": ours,
}

# --- measuring ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Distances:
    """The distances of one measure in one set of images."""

    other_class: NDArray[np.float32]  # of each image to the nearest of another class
    any_class: NDArray[np.float32]
    changed: Mapping[str, NDArray[np.float32]]  # of known images to themselves, by change

    def alarms(self, threshold: float) -> tuple[float, float]:
        """Count images taken for one of another class, and for any other one."""
        other, anyone = ((d <= threshold).mean() for d in (self.other_class, self.any_class))
        return float(other), float(anyone)

    def found(self, threshold: float) -> dict[str, float]:
        return {name: float((d <= threshold).mean()) for name, d in self.changed.items()}


def distances(
    measure: Callable[[Pixels], Vectors], images: LabelledImages, changed: Mapping[str, Pixels]
) -> Distances:
    """Compare all images with all others."""
    vectors = measure(images.pixels)
    squares = (vectors**2).sum(axis=1)
    nearest = np.empty((2, len(images)), np.float32)
    for start in range(0, len(images), _ROWS):
        rows = slice(start, start + _ROWS)
        between = squares[rows, None] + squares - 2 * vectors[rows] @ vectors.T
        between[np.arange(len(between)), np.arange(start, start + len(between))] = np.inf
        same = images.labels[rows, None] == images.labels
        nearest[0, rows] = np.where(same, np.inf, between).min(axis=1)
        nearest[1, rows] = between.min(axis=1)
    other_class, any_class = np.sqrt(np.maximum(nearest, 0))

    def to_themselves(pixels: Pixels) -> NDArray[np.float32]:
        lengths: NDArray[np.float32] = np.linalg.norm(
            measure(pixels) - vectors[: len(pixels)], axis=1
        )
        return lengths

    return Distances(
        other_class, any_class, {name: to_themselves(p) for name, p in changed.items()}
    )


def synthetic_images(real: LabelledImages, count: int) -> LabelledImages:
    """Synthesise images as devices do."""
    torch.set_num_threads(1)
    model = ModelSpec()
    training = TrainingRecipe(batch_size=50, local_epochs=2)
    settings = Hfmds(samples_per_device=_PER_DEVICE, steps=_STEPS)
    recipe = Recipe(model, normalisation_of(real), rounds=1, training=training, method=settings)
    order = np.random.default_rng(0).permutation(len(real))
    first = initial_weights(model, seed=0)
    shard = real.take(order[:_TRAINED_ON])
    weights = method_of(recipe).train(LocalWork(recipe, 1, first, shard, seed=0)).weights
    images_made = []
    for start in range(0, count, _PER_DEVICE):
        shard = real.take(order[start : start + _PER_DEVICE])
        work = LocalWork(recipe, 1, weights, shard, seed=start)
        images_made.append(method_of(work.recipe).synthesise(work).batch.images)
        print_progress(f"{start + _PER_DEVICE} of {count} synthetic images")
    return LabelledImages(
        np.concatenate([images.pixels for images in images_made]),
        np.concatenate([images.labels for images in images_made]),
    )


# --- the tables ---------------------------------------------------------------------------------


def show_table(first: Sequence[str], rows: Sequence[Row]) -> None:
    """Format a Markdown table."""
    print_result(f"| {' | '.join((*first, *CHANGES))} |")
    print_result("|---" * (len(first) + len(CHANGES)) + "|")
    for cells, found in rows:
        print_result(
            f"| {' | '.join((*cells, *(f'{100 * found[name]:.1f}' for name in CHANGES)))} |"
        )
    print_result("")


def report(what: str, images: LabelledImages, *, distinct: bool) -> None:
    """Print both tables of a set; `distinct` says whether images of a class differ."""
    random = np.random.default_rng(0)
    images = images.take(random.permutation(len(images)))
    known = images.pixels[:_QUERIES]
    changed = {name: change(known) for name, change in CHANGES.items()}
    measured = {}
    for name, measure in MEASURES.items():
        measured[name] = distances(measure, images, changed)
        print_progress(f"{what}: {name}")
    print_result(f"### {len(images):,} {what}\n")
    columns = ("like another class, %", "like any other, %")

    def row(first: str, result: Distances, threshold: float) -> Row:
        alarms = (f"{100 * rate:.2f}" for rate in result.alarms(threshold))
        return (first, *alarms), result.found(threshold)

    others = "any other one" if distinct else "one of another class"
    print_result(f"Found, in %, where {100 * FALSE_RATE:g} % are taken for {others}:\n")
    rows = []
    for name, result in measured.items():
        nearest = result.any_class if distinct else result.other_class
        threshold = float(np.quantile(nearest, FALSE_RATE))
        rows.append(row(f"{name}, {threshold:.2f}", result, threshold))
    show_table(("measure, threshold", *columns), rows)
    print_result("Found, in %, by ours:\n")
    result = measured["colour means and edges (ours)"]
    show_table(("threshold", *columns), [row(f"{t:g}", result, t) for t in THRESHOLDS])


def main() -> None:
    """Measure photographs, then synthetic images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--synthetic", type=int, default=2000)
    parser.add_argument(
        "--quick", action="store_true", help="run a minute, only to see that it works"
    )
    options = parser.parse_args()
    if options.quick:
        options.images, options.synthetic = 1000, _PER_DEVICE
    train = load_dataset(options.dataset, options.data_root).train
    report("photographs", subset(train, options.images, seed=0), distinct=False)
    if options.synthetic:
        report("synthetic images", synthetic_images(train, options.synthetic), distinct=True)


if __name__ == "__main__":
    main()
