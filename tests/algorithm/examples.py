"""Small recipes, images, weights and tasks that the tests of the algorithm share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hfmds.algorithm.local_work import LocalWork, Memory
from hfmds.algorithm.models.building import initial_weights
from hfmds.domain.learning import LabelledImages, SyntheticBatch, Weights
from hfmds.domain.methods import (
    FedAvg,
    FedGan,
    FedGen,
    FedMix,
    FedProx,
    Hfmds,
    Method,
    Moon,
)
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe

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
    method=Hfmds(every_rounds=2, first_round=1, samples_per_device=5, steps=3, learning_rate=0.1),
)

EVERY_METHOD: dict[str, Method] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=1.0),
    "moon": Moon(),
    "fedgen": FedGen(noise_size=4, hidden_size=8, generator_steps=3, generator_batch_size=6),
    "fedmix": FedMix(mixing=0.2, samples_per_device=3),
    "fedgan": FedGan(gan_rounds=2, gan_batch_size=4, noise_size=4, width=2, samples_per_device=5),
    "hfmds": HFMDS.method,
}
"""All methods by name, as small as they can be."""


def recipe_for(name: str) -> Recipe:
    return replace(RECIPE, method=EVERY_METHOD[name])


def images(count: int, seed: int = 0, classes: int = 3) -> LabelledImages:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, *SPEC.image_shape), dtype=np.uint8)
    return LabelledImages(pixels, random.integers(0, classes, count))


def weights(seed: int = 0) -> Weights:
    return initial_weights(SPEC, seed)


def work(
    recipe: Recipe,
    shard: LabelledImages,
    given: Weights | None = None,
    *,
    seed: int = 5,
    round_number: int = 1,
    pool: LabelledImages | None = None,
    memory: Memory | None = None,
) -> LocalWork:
    """A device's task, of the first round and with `weights()` unless told otherwise."""
    return LocalWork(
        recipe, round_number, given or weights(), shard, seed, pool=pool, memory=memory or {}
    )


def batch(
    pixels: list[int],
    labels: list[int],
    psnr: list[float] | None = None,
    shares: list[list[float]] | None = None,
) -> SyntheticBatch:
    """One-pixel images."""
    values = np.array(psnr if psnr is not None else [9.0] * len(labels), np.float32)
    return SyntheticBatch(
        LabelledImages(
            np.array(pixels, np.uint8).reshape(-1, 1, 1, 1),
            np.array(labels, np.int64),
            None if shares is None else np.array(shares, np.float32),
        ),
        psnr_paired=values,
        psnr_nearest=values + 1,
        ssim_paired=values / 100,
        ssim_nearest=values / 50,
    )


def assert_same(left: Weights, right: Weights) -> None:
    """Equal to the bit."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
