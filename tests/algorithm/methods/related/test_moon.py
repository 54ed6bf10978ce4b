from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.methods.related.moon import contrastive_loss
from hfmds.algorithm.models.building import load_weights, model_with
from hfmds.algorithm.torch_steps.torch_training import TorchTraining
from hfmds.domain.learning import Weights
from hfmds.domain.methods import Moon
from tests.algorithm.examples import RECIPE, SPEC, assert_same, images, weights, work

SHARD = images(10, seed=1)
MOON = replace(RECIPE, method=Moon(mu=0.7, temperature=0.4))


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def contrast(z: list[float], z_global: list[float], z_previous: list[float], tau: float) -> float:
    """Equation (3) for one sample, as printed."""
    towards = math.exp(cosine(z, z_global) / tau)
    away = math.exp(cosine(z, z_previous) / tau)
    return -math.log(towards / (towards + away))


def features(given: Weights, rows: list[int]) -> list[list[float]]:
    x = (torch.tensor(SHARD.pixels[rows]).double() / 255 - 0.4) / 0.25
    return model_with(SPEC, given).double().features(x).tolist()


def test_the_contrastive_loss_is_equation_3_averaged_over_samples():
    z = [[1.0, 2.0, 0.5], [0.0, 3.0, 4.0]]
    z_global = [[2.0, 1.0, 0.0], [1.0, 3.0, 3.0]]
    z_previous = [[0.0, 0.0, 5.0], [4.0, 0.0, 1.0]]
    expected = sum(contrast(*three, 0.5) for three in zip(z, z_global, z_previous, strict=True)) / 2
    loss = contrastive_loss(*map(torch.tensor, (z, z_global, z_previous)), temperature=0.5)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_it_is_log_2_when_both_are_alike_and_falls_towards_the_global_features():
    here, there = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    alike = contrastive_loss(here, there, there, 0.5).item()
    assert alike == pytest.approx(math.log(2))
    assert contrastive_loss(here, here, there, 0.5).item() < alike
    assert contrastive_loss(here, there, here, 0.5).item() > alike


def test_the_loss_adds_mu_times_the_contrast_of_three_models():
    training = TorchTraining(work(MOON, SHARD, weights(0), memory=weights(1)))
    loss = method_of(MOON).torch_loss(training)
    load_weights(training.model, weights(2))  # on its way from w^t
    rows = [3, 8, 1]
    batch = training.batch(np.array(rows))
    plain = method_of(RECIPE).torch_loss(training)(batch).value.item()
    three = zip(*(features(weights(i), rows) for i in (2, 0, 1)), strict=True)
    expected = sum(contrast(z, of_global, of_previous, 0.4) for z, of_global, of_previous in three)
    assert loss(batch).value.item() == pytest.approx(plain + 0.7 * expected / 3, rel=1e-5)


def test_only_the_model_in_training_is_moved_by_it():
    training = TorchTraining(work(MOON, SHARD, memory=weights(1)))
    loss = method_of(MOON).torch_loss(training)
    load_weights(training.model, weights(2))
    moved = {id(leaf) for leaf in leaves(loss(training.batch(np.array([3, 8, 1]))).value)}
    assert moved == {id(parameter) for parameter in training.model.parameters()}


def leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that the loss would give a gradient to."""
    found, to_visit, seen = [], [loss.grad_fn], set()
    while to_visit:
        node = to_visit.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        to_visit += [after for after, _ in node.next_functions]
    return found


def test_the_first_round_of_a_device_is_fedavg():
    first = method_of(MOON).train(work(MOON, SHARD))
    assert_same(first.weights, method_of(RECIPE).train(work(RECIPE, SHARD)).weights)


def test_it_remembers_its_last_local_model_for_the_next_round():
    method = method_of(MOON)
    first = method.train(work(MOON, SHARD))
    assert_same(first.memory, first.weights)
    second = method.train(work(MOON, SHARD, weights(3), round_number=2, memory=first.memory))
    forgetful = method.train(work(MOON, SHARD, weights(3), round_number=2))
    assert not np.array_equal(second.weights["hidden.weight"], forgetful.weights["hidden.weight"])
    assert_same(second.memory, second.weights)
