from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hfmds.algorithm.local_work import TrainedModel
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.building import load_weights, model_with, weights_of
from hfmds.algorithm.sampling import epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.torch_steps.losses import proximal_term
from hfmds.algorithm.torch_steps.torch_training import TorchTraining
from hfmds.domain.learning import LabelledImages, Weights
from hfmds.domain.methods import FedProx
from tests.algorithm.examples import RECIPE, SPEC, assert_same, images, weights, work

SHARD = images(10, seed=1)


def train(mu: float, shard: LabelledImages = SHARD) -> TrainedModel:
    recipe = replace(RECIPE, method=FedProx(mu=mu))
    return method_of(recipe).train(work(recipe, shard))


def distance(left: Weights, right: Weights) -> float:
    """Over all weights as one vector, in float64."""
    return sum(float(((left[n].astype(np.float64) - right[n]) ** 2).sum()) for n in left)


def test_distance_is_over_all_parameters_as_one_vector():
    parameters = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    anchor = [torch.tensor([0.0, 4.0]), torch.tensor([[6.0]])]
    assert proximal_term(parameters, anchor, mu=0.5).item() == 0.25 * (1 + 4 + 9)


def test_the_proximal_term_is_half_mu_times_the_squared_distance_to_the_global_weights():
    recipe = replace(RECIPE, method=FedProx(mu=0.3))
    rows = np.array([4, 0, 9])
    training = TorchTraining(work(recipe, SHARD))
    loss = method_of(recipe).torch_loss(training)
    plain = method_of(RECIPE).torch_loss(training)
    batch = training.batch(rows)
    assert loss(batch).value.item() == plain(batch).value.item()  # still at w^t
    load_weights(training.model, weights(1))
    expected = 0.3 / 2 * distance(weights(1), weights())
    apart = loss(batch).value.item() - plain(batch).value.item()
    assert apart == pytest.approx(expected, rel=1e-5)


def test_every_step_is_pulled_back_by_mu_times_the_way_gone():
    """The term's gradient, mu (w - w^t), added by hand to that of the loss on real data."""
    mu, settings = 2.0, RECIPE.training
    model = model_with(SPEC, weights())
    parameters = list(model.parameters())
    anchor = [p.detach().clone() for p in parameters]
    velocity = [torch.zeros_like(p) for p in parameters]
    order = generator(5, "real")
    for _ in range(settings.local_epochs):
        for rows in epoch_batches(len(SHARD), settings.batch_size, order):
            x = (torch.tensor(SHARD.pixels[rows]).float() / 255 - 0.4) / 0.25
            log_p = torch.log_softmax(model(x), dim=1)
            loss = -log_p[range(len(rows)), torch.tensor(SHARD.labels[rows])].mean()
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, a, v, g in zip(parameters, anchor, velocity, gradients, strict=True):
                    pull = mu * (p - a)
                    v.mul_(settings.momentum).add_(g + pull + settings.weight_decay * p)
                    p.sub_(settings.learning_rate * v)
    expected = weights_of(model)
    for name, array in train(mu).weights.items():
        np.testing.assert_allclose(array, expected[name], atol=2e-5, err_msg=name)


def test_without_its_term_it_is_fedavg():
    assert_same(train(0.0).weights, method_of(RECIPE).train(work(RECIPE, SHARD)).weights)


def test_the_more_mu_the_nearer_it_stays():
    ways = [distance(train(mu).weights, weights()) for mu in (0.0, 1.0, 10.0)]
    assert ways[0] > 1.1 * ways[1] > 1.1 * 1.1 * ways[2]
