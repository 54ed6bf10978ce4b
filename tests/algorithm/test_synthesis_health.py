"""Whether synthesis is sound on real images: the design note's health checks, on the digits."""

from __future__ import annotations

import numpy as np
import pytest

from hfmds.algorithm.engine import Synthesis
from hfmds.algorithm.models import initial_weights
from hfmds.algorithm.privacy import psnr_paired
from hfmds.algorithm.synthesis import synthesise
from hfmds.algorithm.training import train
from hfmds.algorithm.types import (
    LabelledImages,
    ModelSpec,
    Recipe,
    SynthesisRecipe,
    TrainingRecipe,
)
from hfmds.data.sources import load_images
from hfmds.data.splits import iid
from hfmds.data.statistics import normalisation_of

DIGITS = load_images("digits:20#train")
RECIPE = Recipe(
    model=ModelSpec(channels=1, height=20, width=20),
    normalisation=normalisation_of(DIGITS),
    rounds=1,
    training=TrainingRecipe(local_epochs=1),
    synthesis=SynthesisRecipe(samples_per_device=30, steps=100),
)


@pytest.fixture(scope="module")
def shard() -> LabelledImages:
    """Three classes, as a device with skewed data has them."""
    return DIGITS.take(np.flatnonzero(DIGITS.labels < 3)[:90])


@pytest.fixture(scope="module")
def refreshes(shard: LabelledImages) -> tuple[Synthesis, Synthesis]:
    """Two refreshes of one device, with a global model that is half and then well trained."""
    everyone = [DIGITS.take(part) for part in iid(DIGITS.labels, 2, seed=0)]
    half = train(RECIPE, initial_weights(RECIPE.model, 0), everyone[0], None, seed=0).weights
    well = train(RECIPE, half, everyone[1], None, seed=1).weights
    first = synthesise(RECIPE, half, shard, {}, seed=2)
    return first, synthesise(RECIPE, well, shard, first.prototypes, seed=3)


def test_both_loss_terms_pull_with_comparable_strength(refreshes: tuple[Synthesis, Synthesis]):
    for made in refreshes:
        assert 0.1 < made.health.gradient_ratio < 10


def test_hard_features_are_nearer_to_the_decision_boundary(refreshes: tuple[Synthesis, Synthesis]):
    for made in refreshes:
        assert made.health.hard_margin < made.health.real_margin


def test_the_global_model_recognises_the_synthetic_images(refreshes: tuple[Synthesis, Synthesis]):
    assert refreshes[1].health.accuracy >= 0.97


def test_synthetic_images_are_far_less_like_the_real_ones_than_those_are_like_each_other(
    shard: LabelledImages, refreshes: tuple[Synthesis, Synthesis]
):
    ones = shard.pixels[shard.labels == 1]
    among_real = psnr_paired(ones[1:], ones[:-1]).mean()  # 15 dB, and 20 dB to the nearest
    for made in refreshes:
        assert 7 < made.batch.psnr_paired.mean() < 12  # plain noise is at 7.3 dB
        assert made.batch.psnr_nearest.max() < among_real
