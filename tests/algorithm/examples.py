"""Small recipes, images and weights that the tests of the algorithm share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hfmds.algorithm.models import initial_weights
from hfmds.algorithm.types import (
    LabelledImages,
    ModelSpec,
    Normalisation,
    Recipe,
    SynthesisRecipe,
    SyntheticBatch,
    TrainingRecipe,
    Weights,
)

SPEC = ModelSpec(channels=1, height=16, width=16, classes=3)
RECIPE = Recipe(
    model=SPEC,
    normalisation=Normalisation(mean=(0.4,), std=(0.25,)),
    rounds=3,
    seed=7,
    training=TrainingRecipe(batch_size=4, local_epochs=2, learning_rate=0.05, alpha=0.3),
)
HFMDS = replace(
    RECIPE,
    synthesis=SynthesisRecipe(
        every_rounds=2, first_round=1, samples_per_device=5, steps=3, learning_rate=0.1
    ),
)


def images(count: int, seed: int = 0, classes: int = 3) -> LabelledImages:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, *SPEC.image_shape), dtype=np.uint8)
    return LabelledImages(pixels, random.integers(0, classes, count))


def weights(seed: int = 0) -> Weights:
    return initial_weights(SPEC, seed)


def batch(pixels: list[int], labels: list[int], psnr: list[float] | None = None) -> SyntheticBatch:
    """One-pixel images."""
    values = np.array(psnr if psnr is not None else [9.0] * len(labels), np.float32)
    return SyntheticBatch(
        LabelledImages(np.array(pixels, np.uint8).reshape(-1, 1, 1, 1), np.array(labels, np.int64)),
        psnr_paired=values,
        psnr_nearest=values + 1,
    )


def assert_same(left: Weights, right: Weights) -> None:
    """Equal to the bit."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
