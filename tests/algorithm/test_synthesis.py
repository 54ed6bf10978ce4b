"""The terms of L_HFMDS against formulas written out by hand, then the whole of a synthesis."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hfmds.algorithm.leakage.measurement import psnr_nearest, psnr_paired
from hfmds.algorithm.local_work import Memory, Progress, SynthesisHealth, no_progress
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.building import model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.sampling import choose, initial_noise
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.torch_steps.losses import (
    class_activation,
    hard_features,
    matching_loss,
    relevance,
)
from hfmds.domain.learning import LabelledImages, SyntheticBatch, Weights
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import Recipe
from hfmds.errors import InvalidInput
from tests.algorithm.examples import HFMDS, RECIPE, SPEC, images, weights, work

SHARD = images(12, seed=3)


def with_synthesis(**changes: float) -> Recipe:
    return replace(HFMDS, method=replace(HFMDS.method, **changes))


def synthesise(
    recipe: Recipe = HFMDS,
    given: Weights | None = None,
    shard: LabelledImages = SHARD,
    memory: Memory | None = None,
    seed: int = 5,
    progress: Progress = no_progress,
) -> tuple[SyntheticBatch, Memory, SynthesisHealth]:
    task = work(recipe, shard, given, seed=seed, memory=memory)
    made = method_of(recipe).synthesise(task, progress)
    assert made.health
    return made.batch, made.memory, made.health


def test_hard_features_move_away_from_the_prototype():
    z, zbar = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 3.0]])
    assert hard_features(z, zbar, mu=0.5).tolist() == [[2.5, 0.0]]
    assert hard_features(z, zbar, mu=0.0).tolist() == [[2.0, 1.0]]  # FMDS
    assert hard_features(z, zbar, mu=-0.5).tolist() == [[1.5, 2.0]]  # easy: half way to it


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


def test_cam_of_a_two_layer_classifier_is_the_slope_of_the_class_logit():
    torch.manual_seed(0)
    classifier = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    (w1, b1), (w2, b2) = [
        (layer.weight.detach().numpy(), layer.bias.detach().numpy())
        for layer in (classifier[0], classifier[2])
    ]
    z = np.random.default_rng(1).normal(size=(3, 4))
    labels = [2, 0, 1]

    def logit(features: np.ndarray, c: int) -> float:
        return float(w2[c] @ np.tanh(w1 @ features + b1) + b2[c])

    step = 1e-6 * np.eye(4)
    slopes = [
        [(logit(row + e, c) - logit(row - e, c)) / 2e-6 for e in step]
        for row, c in zip(z, labels, strict=True)
    ]
    cam = class_activation(classifier, torch.tensor(z), torch.tensor(labels))
    np.testing.assert_allclose(cam, np.maximum(slopes, 0), atol=1e-8)
    assert (np.array(slopes) < -1e-3).any(), "no slope to cut off"


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
    other_way = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    other_way += 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert abs(loss - other_way / 2) > 0.05
    assert matching_loss(target, cam, relevance(target, cam)).item() == pytest.approx(0, abs=1e-6)


def test_one_step_is_one_adam_step_on_the_whole_objective():
    recipe = with_synthesis(steps=1, matching_weight=2.0, mu=0.7)
    previous = {str(c): np.full(512, 0.1 * c, np.float32) for c in range(3)}
    batch, memory, health = synthesise(recipe, memory=previous)

    # The same by hand: no helper of synthesis.py is used below.
    model = model_with(SPEC, weights())
    subset = choose(12, 5, generator(5, "subset"))
    labels = torch.tensor(SHARD.labels[subset])
    with torch.no_grad():
        features = model.features(torch.tensor(normalise(SHARD.pixels, recipe.normalisation)))
    hard = []
    for row, c in zip(subset.tolist(), labels.tolist(), strict=True):
        zbar = 0.5 * features[SHARD.labels == c].mean(dim=0) + 0.5 * 0.1 * c
        np.testing.assert_allclose(memory[str(c)], zbar, atol=1e-6)
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
    difference = np.abs(batch.images.pixels.astype(float) - expected)
    # A pixel whose gradient vanishes may step either way; all others round to the same value.
    assert np.mean(difference <= 0.51) > 0.99
    assert batch.images.labels.tolist() == labels.tolist()
    ratio = (of_matching.norm() / of_classification.norm()).item()
    # Features just above zero dominate the gradient of the KL, so rounding shows in the ratio.
    assert health.gradient_ratio == pytest.approx(ratio, rel=1e-2)


def test_health_is_of_the_images_as_sent():
    batch, _, health = synthesise(with_synthesis(steps=20))
    sent = batch.images
    logits = model_with(SPEC, weights())(torch.tensor(normalise(sent.pixels, HFMDS.normalisation)))
    labels = torch.tensor(sent.labels)
    expected = nn.functional.cross_entropy(logits, labels).item()
    assert health.classification_loss == pytest.approx(expected, rel=1e-4)
    assert health.accuracy == np.mean(logits.argmax(dim=1).numpy() == sent.labels)


def test_both_losses_fall():
    _, _, start = synthesise(with_synthesis(steps=0))
    _, _, end = synthesise(with_synthesis(steps=40))
    assert end.classification_loss < 0.9 * start.classification_loss
    assert end.matching_loss < 0.5 * start.matching_loss


def test_without_its_weight_the_matching_loss_is_measured_but_not_followed():
    _, _, start = synthesise(with_synthesis(steps=0))
    _, _, matched = synthesise(with_synthesis(steps=40))
    _, _, classified = synthesise(with_synthesis(steps=40, matching_weight=0.0))  # L_C only
    assert classified.classification_loss < 0.9 * start.classification_loss
    assert classified.matching_loss > 2 * matched.matching_loss


def test_without_steps_the_batch_is_plain_noise():
    batch, _, _ = synthesise(with_synthesis(steps=0))
    noise = initial_noise((5, 1, 16, 16), generator(5, "noise"))
    expected = np.clip((noise * 0.25 + 0.4) * 255, 0, 255).round()
    np.testing.assert_allclose(batch.images.pixels, expected, atol=1)


def test_margins_are_of_the_class_against_the_best_other():
    _, _, health = synthesise(with_synthesis(mu=0.0, samples_per_device=12))
    logits = model_with(SPEC, weights())(
        torch.tensor(normalise(SHARD.pixels, HFMDS.normalisation))
    ).detach()
    margins = [
        row[c] - max(row[other] for other in range(3) if other != c)
        for row, c in zip(logits.tolist(), SHARD.labels.tolist(), strict=True)
    ]
    assert health.real_margin == pytest.approx(np.mean(margins), abs=1e-5)
    assert health.hard_margin == pytest.approx(health.real_margin, abs=1e-6)


def test_leakage_is_measured_against_the_paired_and_the_nearest_real_image():
    batch, _, _ = synthesise()
    paired = SHARD.pixels[choose(12, 5, generator(5, "subset"))]
    sent = batch.images.pixels
    np.testing.assert_array_equal(batch.psnr_paired, psnr_paired(sent, paired))
    np.testing.assert_array_equal(batch.psnr_nearest, psnr_nearest(sent, SHARD.pixels))


def test_same_seed_same_batch():
    first, again, other = (synthesise(seed=seed)[0].images.pixels for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_small_shard_is_used_more_than_once():
    batch, _, _ = synthesise(shard=images(2, seed=1))
    assert len(batch) == 5


def test_progress_counts_every_step():
    seen: list[tuple[int, int]] = []
    synthesise(progress=lambda *step: seen.append(step))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_divergence_is_refused():
    broken = {**weights(), "hidden.bias": np.full(512, np.nan, np.float32)}
    with pytest.raises(InvalidInput, match=r"nan at step 1 of 3; lower"):
        synthesise(given=broken)


def test_a_model_that_sees_nothing_has_no_gradient_ratio():
    blind = {**weights(), "hidden.bias": np.full(512, -1e3, np.float32)}
    assert synthesise(given=blind)[2].gradient_ratio == 0


def test_unfit_requests_are_refused():
    with pytest.raises(InvalidInput, match="method fedavg shares no images"):
        method_of(RECIPE).synthesise(work(RECIPE, SHARD))
    with pytest.raises(InvalidInput, match="shard is empty"):
        synthesise(shard=SHARD.take(np.array([], np.int64)))
    other = replace(HFMDS, model=replace(SPEC, height=20), method=Hfmds())
    with pytest.raises(InvalidInput, match=r"shard: images are \[1, 16, 16\]"):
        synthesise(other)
