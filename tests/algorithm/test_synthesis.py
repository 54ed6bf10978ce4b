"""The terms of L_HFMDS against formulas written out by hand, then the whole of a synthesis."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hfmds.algorithm.models import model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.privacy import psnr_nearest, psnr_paired
from hfmds.algorithm.sampling import choose, initial_noise
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.synthesis import (
    adam_step,
    class_activation,
    hard_features,
    matching_loss,
    relevance,
    synthesise,
)
from hfmds.algorithm.types import Recipe, SynthesisRecipe
from hfmds.errors import InvalidInput
from tests.algorithm.examples import HFMDS, RECIPE, SPEC, images, weights

SHARD = images(12, seed=3)


def with_synthesis(**changes: float) -> Recipe:
    assert HFMDS.synthesis
    return replace(HFMDS, synthesis=replace(HFMDS.synthesis, **changes))


def test_hard_features_move_away_from_the_prototype():
    z, zbar = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 3.0]])
    assert hard_features(z, zbar, mu=0.5).tolist() == [[2.5, 0.0]]


def test_cam_of_a_linear_classifier_is_the_positive_part_of_the_class_row():
    classifier = nn.Linear(3, 2)
    with torch.no_grad():
        classifier.weight.copy_(torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 0.5]]))
    cam = class_activation(classifier, torch.randn(2, 3), torch.tensor([1, 0]))
    assert cam.tolist() == [[0.0, 5.0, 0.5], [1.0, 0.0, 3.0]]


def test_cam_of_a_curved_classifier_is_the_gradient_at_the_features():
    class Squares(nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return torch.stack([z.square().sum(dim=1), -z.sum(dim=1)], dim=1)

    z = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    cam = class_activation(Squares(), z, torch.tensor([0, 0]))
    assert cam.tolist() == [[2.0, 0.0], [6.0, 8.0]]  # relu(2z), sample by sample


def test_relevance_is_the_share_of_positive_features_times_cam():
    shares = relevance(torch.tensor([[1.0, -5.0, 3.0]]), torch.tensor([[2.0, 1.0, 2.0]]))
    total = 2 + 0 + 6 + 3e-6
    expected = [(2 + 1e-6) / total, 1e-6 / total, (6 + 1e-6) / total]
    np.testing.assert_allclose(shares[0], expected, rtol=1e-6)


def test_matching_loss_is_kl_from_target_to_synthetic():
    cam = torch.ones(2, 2)
    target = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    z_synthetic = torch.tensor([[1.0, 1.0], [9.0, 1.0]])
    first = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    second = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    loss = matching_loss(z_synthetic, cam, target).item()
    assert loss == pytest.approx((first + second) / 2, rel=1e-5)
    assert matching_loss(target, cam, relevance(target, cam)).item() == pytest.approx(0, abs=1e-6)


def test_adam_agrees_with_torchs():
    ours, theirs = torch.ones(3), torch.ones(3, requires_grad=True)
    mean, square = torch.zeros(3), torch.zeros(3)
    adam = torch.optim.Adam([theirs], lr=0.1)
    for step in range(1, 6):
        gradient = torch.tensor([1.0, -0.01 * step, 1e-9]) * step
        adam_step(ours, mean, square, gradient, step, learning_rate=0.1)
        theirs.grad = gradient
        adam.step()
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_one_step_is_one_adam_step_on_the_whole_objective():
    recipe = with_synthesis(steps=1, matching_weight=2.0, mu=0.7)
    previous = {c: np.full(512, 0.1 * c, np.float32) for c in range(3)}
    made = synthesise(recipe, weights(), SHARD, previous, seed=5)

    # The same by hand: no helper of synthesis.py is used below.
    model = model_with(SPEC, weights())
    subset = choose(12, 5, generator(5, "subset"))
    labels = torch.tensor(SHARD.labels[subset])
    with torch.no_grad():
        features = model.features(torch.tensor(normalise(SHARD.pixels, recipe.normalisation)))
    hard = []
    for row, c in zip(subset.tolist(), labels.tolist(), strict=True):
        zbar = 0.5 * features[SHARD.labels == c].mean(dim=0) + 0.5 * 0.1 * c
        np.testing.assert_allclose(made.prototypes[c], zbar, atol=1e-6)
        hard.append(1.7 * features[row] - 0.7 * zbar)
    rows = model.classifier.weight.detach()[labels].clamp(min=0)
    p = torch.stack(hard).clamp(min=0) * rows + 1e-6
    p = p / p.sum(dim=1, keepdim=True)
    noise = initial_noise((5, 1, 16, 16), generator(5, "noise"))
    x = torch.tensor(noise, requires_grad=True)
    z_synthetic = model.features(x)
    q = z_synthetic * rows + 1e-6
    q = q / q.sum(dim=1, keepdim=True)
    l_hfm = (p * (p / q).log()).sum(dim=1).mean()
    log_softmax = torch.log_softmax(model.classifier(z_synthetic), dim=1)
    l_c = -log_softmax.gather(1, labels[:, None]).mean()
    (of_matching,) = torch.autograd.grad(l_hfm, x, retain_graph=True)
    (of_classification,) = torch.autograd.grad(l_c, x)
    gradient = 2 * of_matching + of_classification
    stepped = noise - 0.1 * (gradient / (gradient.abs() + 1e-8)).numpy()  # Adam's first step

    expected = np.clip((stepped * 0.25 + 0.4) * 255, 0, 255)
    difference = np.abs(made.batch.images.pixels.astype(float) - expected)
    # A pixel whose gradient vanishes may step either way; all others round to the same value.
    assert np.mean(difference <= 0.51) > 0.99
    assert made.batch.images.labels.tolist() == labels.tolist()
    ratio = (of_matching.norm() / of_classification.norm()).item()
    # Features just above zero dominate the gradient of the KL, so rounding shows in the ratio.
    assert made.health.gradient_ratio == pytest.approx(ratio, rel=1e-2)


def test_health_is_of_the_images_as_sent():
    made = synthesise(with_synthesis(steps=20), weights(), SHARD, {}, seed=5)
    sent = made.batch.images
    logits = model_with(SPEC, weights())(torch.tensor(normalise(sent.pixels, HFMDS.normalisation)))
    labels = torch.tensor(sent.labels)
    expected = nn.functional.cross_entropy(logits, labels).item()
    assert made.health.classification_loss == pytest.approx(expected, rel=1e-4)
    assert made.health.accuracy == np.mean(logits.argmax(dim=1).numpy() == sent.labels)


def test_both_losses_fall():
    start = synthesise(with_synthesis(steps=0), weights(), SHARD, {}, seed=5).health
    end = synthesise(with_synthesis(steps=40), weights(), SHARD, {}, seed=5).health
    assert end.classification_loss < 0.9 * start.classification_loss
    assert end.matching_loss < 0.5 * start.matching_loss


def test_without_steps_the_batch_is_plain_noise():
    made = synthesise(with_synthesis(steps=0), weights(), SHARD, {}, seed=5)
    noise = initial_noise((5, 1, 16, 16), generator(5, "noise"))
    expected = np.clip((noise * 0.25 + 0.4) * 255, 0, 255).round()
    np.testing.assert_allclose(made.batch.images.pixels, expected, atol=1)


def test_margins_are_of_the_class_against_the_best_other():
    made = synthesise(with_synthesis(mu=0.0, samples_per_device=12), weights(), SHARD, {}, seed=5)
    logits = model_with(SPEC, weights())(
        torch.tensor(normalise(SHARD.pixels, HFMDS.normalisation))
    ).detach()
    margins = [
        row[c] - max(row[other] for other in range(3) if other != c)
        for row, c in zip(logits.tolist(), SHARD.labels.tolist(), strict=True)
    ]
    assert made.health.real_margin == pytest.approx(np.mean(margins), abs=1e-5)
    assert made.health.hard_margin == pytest.approx(made.health.real_margin, abs=1e-6)


def test_leakage_is_measured_against_the_paired_and_the_nearest_real_image():
    made = synthesise(HFMDS, weights(), SHARD, {}, seed=5)
    paired = SHARD.pixels[choose(12, 5, generator(5, "subset"))]
    sent = made.batch.images.pixels
    np.testing.assert_array_equal(made.batch.psnr_paired, psnr_paired(sent, paired))
    np.testing.assert_array_equal(made.batch.psnr_nearest, psnr_nearest(sent, SHARD.pixels))


def test_same_seed_same_batch():
    first = synthesise(HFMDS, weights(), SHARD, {}, seed=5).batch.images
    again = synthesise(HFMDS, weights(), SHARD, {}, seed=5).batch.images
    other = synthesise(HFMDS, weights(), SHARD, {}, seed=6).batch.images
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert not np.array_equal(first.pixels, other.pixels)


def test_a_small_shard_is_used_more_than_once():
    made = synthesise(HFMDS, weights(), images(2, seed=1), {}, seed=5)
    assert len(made.batch) == 5


def test_progress_counts_every_step():
    seen: list[tuple[int, int]] = []
    synthesise(HFMDS, weights(), SHARD, {}, seed=5, progress=lambda *step: seen.append(step))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_divergence_is_refused():
    broken = {**weights(), "hidden.bias": np.full(512, np.nan, np.float32)}
    with pytest.raises(InvalidInput, match=r"synthesis diverged within 3 steps.*; lower"):
        synthesise(HFMDS, broken, SHARD, {}, seed=5)


def test_a_model_that_sees_nothing_has_no_gradient_ratio():
    blind = {**weights(), "hidden.bias": np.full(512, -1e3, np.float32)}
    assert synthesise(HFMDS, blind, SHARD, {}, seed=5).health.gradient_ratio == 0


def test_unfit_requests_are_refused():
    with pytest.raises(InvalidInput, match="no synthesis part"):
        synthesise(RECIPE, weights(), SHARD, {}, seed=5)
    with pytest.raises(InvalidInput, match="shard is empty"):
        synthesise(HFMDS, weights(), SHARD.take(np.array([], np.int64)), {}, seed=5)
    other = replace(HFMDS, model=replace(SPEC, height=20), synthesis=SynthesisRecipe())
    with pytest.raises(InvalidInput, match=r"shard: images are \[1, 16, 16\]"):
        synthesise(other, weights(), SHARD, {}, seed=5)
