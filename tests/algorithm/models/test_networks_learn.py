"""Whether each network, ours or not, can be trained, averaged, evaluated and synthesised with."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hfmds.algorithm.aggregation.aggregation import combine
from hfmds.algorithm.local_work import LocalWork, SynthesisHealth, TrainedModel
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.architectures import register_architecture
from hfmds.algorithm.models.building import build_model, initial_weights, load_weights, weights_of
from hfmds.algorithm.torch_steps.torch_evaluation import evaluate
from hfmds.domain.learning import LabelledImages, Update, Weights
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe
from tests.algorithm.examples import assert_same


class BatchNormNet(nn.Module):
    """A network of a researcher's own, with buffers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(spec.channels, 16, kernel_size=3, stride=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
        )
        positions = ((spec.height - 1) // 2) * ((spec.width - 1) // 2)
        self.classifier = nn.Linear(16 * positions, spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


register_architecture("batch-norm-net", BatchNormNet)


class DropoutNet(BatchNormNet):
    """A network that draws random numbers as it trains."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.features.append(nn.Dropout(0.5))


register_architecture("dropout-net", DropoutNet)

BATCHES = 6  # of 4 images, in each of the epochs


def recipe(architecture: str, epochs: int = 1) -> Recipe:
    return Recipe(
        model=ModelSpec(architecture, channels=2, height=16, width=18, classes=3),
        normalisation=Normalisation(mean=(0.4, 0.5), std=(0.25, 0.25)),
        rounds=1,
        training=TrainingRecipe(batch_size=4, local_epochs=epochs, learning_rate=0.02),
    )


def images(seed: int = 0) -> LabelledImages:
    """Noise, with a bright bar whose place tells the class."""
    labels = np.arange(4 * BATCHES) % 3
    pixels = np.random.default_rng(seed).integers(0, 120, (len(labels), 2, 16, 18), dtype=np.uint8)
    for image, c in zip(pixels, labels, strict=True):
        image[:, :, 6 * c : 6 * c + 6] += 100
    return LabelledImages(pixels, labels.astype(np.int64))


def trained(architecture: str, epochs: int, seed: int = 0) -> TrainedModel:
    run = recipe(architecture, epochs)
    work = LocalWork(run, 1, initial_weights(run.model, 0), images(seed), seed)
    return method_of(run).train(work)


def loss(architecture: str, weights: Weights) -> float:
    run = recipe(architecture)
    return evaluate(run.model, weights, run.normalisation, images(seed=9)).loss


@pytest.mark.parametrize("architecture", ["paper-cnn", "resnet-gn", "batch-norm-net"])
def test_training_lowers_the_loss_on_seen_and_on_new_images(architecture: str):
    untrained = loss(architecture, initial_weights(recipe(architecture).model, 0))
    after = trained(architecture, epochs=8)
    assert after.loss < 0.2 < untrained
    assert loss(architecture, after.weights) < 0.2


@pytest.mark.parametrize("architecture", ["resnet-gn", "batch-norm-net"])
def test_synthesis_matches_features_and_classes_and_is_sound(architecture: str):
    weights = trained(architecture, epochs=8).weights

    def synthesise(steps: int) -> SynthesisHealth:
        method = Hfmds(samples_per_device=8, steps=steps, learning_rate=0.1)
        run = replace(recipe(architecture), rounds=method.preparation_rounds + 1, method=method)
        made = method_of(run).synthesise(LocalWork(run, 1, weights, images(), seed=2))
        assert made.health is not None
        return made.health

    start, end = synthesise(0), synthesise(40)
    assert all(map(math.isfinite, astuple(end)))
    assert 0.1 < end.gradient_ratio < 10
    assert end.matching_loss < 0.6 * start.matching_loss
    assert end.classification_loss < 0.1 * start.classification_loss
    assert end.accuracy == 1


def test_a_step_of_the_resnet_is_one_of_plain_sgd():
    run = recipe("resnet-gn")
    run = replace(run, training=replace(run.training, batch_size=4 * BATCHES))  # one step
    shard = images()
    first = initial_weights(run.model, 0)
    after = method_of(run).train(LocalWork(run, 1, first, shard, seed=0))

    model = build_model(run.model)
    load_weights(model, first)
    mean = torch.tensor([0.4, 0.5]).reshape(2, 1, 1)
    logits = model((torch.tensor(shard.pixels) / 255 - mean) / 0.25)
    expected_loss = nn.functional.cross_entropy(logits, torch.tensor(shard.labels))
    expected_loss.backward()
    assert after.loss == pytest.approx(expected_loss.item(), rel=1e-5)
    for name, w in model.named_parameters():
        assert w.grad is not None
        expected = (w - 0.02 * (w.grad + 5e-4 * w)).detach()  # momentum has nothing to carry yet
        np.testing.assert_allclose(after.weights[name], expected, atol=1e-6, err_msg=name)


def test_batch_norms_buffers_are_weights_like_others():
    after = trained("batch-norm-net", epochs=2).weights
    count = after["features.1.num_batches_tracked"]
    assert (count.dtype, count.shape) == (np.float32, ())
    assert count == 2 * BATCHES
    assert (after["features.1.running_mean"] != 0).all()

    model = build_model(recipe("batch-norm-net").model)
    load_weights(model, after)
    assert model.state_dict()["features.1.num_batches_tracked"].dtype == torch.int64
    assert_same(weights_of(model), after)


def test_batch_norms_statistics_are_averaged_over_devices():
    updates = [
        Update("a", trained("batch-norm-net", epochs=1, seed=1).weights, 24, 0.0),
        Update("b", trained("batch-norm-net", epochs=2, seed=2).weights, 24, 0.0),
    ]
    like, run = updates[0].weights, recipe("batch-norm-net")
    mean = combine(run.aggregation, like, updates, like.keys()).weights
    name = "features.1.running_var"
    expected = (updates[0].weights[name] + updates[1].weights[name]) / 2
    np.testing.assert_allclose(mean[name], expected, rtol=1e-6)

    again = method_of(run).train(LocalWork(run, 2, mean, images(), seed=3)).weights
    # (6 + 12) / 2 batches, and those of the next round.
    assert again["features.1.num_batches_tracked"] == 9 + BATCHES
    odd = {**like, "features.1.num_batches_tracked": np.float32(7.5)}
    model = build_model(run.model)
    load_weights(model, odd)
    assert model.state_dict()["features.1.num_batches_tracked"] == 7


def test_a_network_that_draws_numbers_repeats_with_the_tasks_seed_and_leaves_torchs_alone():
    start = initial_weights(recipe("dropout-net").model, seed=0)

    def trained(seed: int) -> Weights:
        work = LocalWork(recipe("dropout-net"), 1, start, images(), seed)
        return method_of(work.recipe).train(work).weights

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = trained(1)
    torch.testing.assert_close(torch.rand(3), expected)
    assert_same(first, trained(1))
    assert not np.array_equal(first["classifier.bias"], trained(2)["classifier.bias"])
