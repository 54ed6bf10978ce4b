"""FedMix's loss and its gradient against numpy and finite differences, and what devices share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from hfmds.algorithm.leakage.measurement import psnr_nearest
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.methods.related.fedmix import mixup_loss
from hfmds.algorithm.models.building import model_with
from hfmds.algorithm.sampling import choose
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.torch_steps.torch_training import TorchTraining
from hfmds.domain.learning import LabelledImages, SyntheticBatch
from hfmds.domain.methods import FedMix
from hfmds.domain.recipe import Recipe
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE, SPEC, assert_same, images, weights, work

Array = NDArray[np.float64]

SHARD = images(10, seed=1)
RANDOM = np.random.default_rng(4)
X, X_G = RANDOM.normal(size=(3, 4)), RANDOM.normal(size=(3, 4))
Y, Y_G = np.eye(3)[[2, 0, 1]], np.array([[0.5, 0.5, 0], [0, 1, 0], [0.25, 0, 0.75]])


class Smooth:
    """W2 tanh(W1 x + b1) + b2, its cross-entropy and that one's slope by the chain rule."""

    def __init__(self, parameters: list[Array]) -> None:
        self.w1, self.b1, self.w2, self.b2 = parameters

    def log_p(self, x: Array) -> Array:
        q = self.w2 @ np.tanh(self.w1 @ x + self.b1) + self.b2
        return q - np.log(np.exp(q).sum())

    def cross_entropy(self, x: Array, y: Array) -> float:
        return -float(y @ self.log_p(x))

    def slope(self, x: Array, y: Array) -> Array:
        """dl/dx."""
        h = np.tanh(self.w1 @ x + self.b1)
        return self.w1.T @ ((1 - h**2) * (self.w2.T @ (np.exp(self.log_p(x)) - y)))


def parameters() -> list[Array]:
    random = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(5, 4), (5,), (3, 5), (3,)]
    return [random.normal(size=shape) for shape in shapes]


def torch_network() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for tensor, value in zip(network.parameters(), parameters(), strict=True):
            tensor.copy_(torch.tensor(value))
    return network


def by_hand(network: Smooth, mixing: float) -> float:
    """Proposition 1, sample by sample."""
    total = 0.0
    for x, y, x_g, y_g in zip(X, Y, X_G, Y_G, strict=True):
        shrunk = (1 - mixing) * x
        total += (1 - mixing) * network.cross_entropy(shrunk, y)
        total += mixing * network.cross_entropy(shrunk, y_g)
        total += mixing * float(network.slope(shrunk, y) @ x_g)
    return total / len(X)


def approximated(network: nn.Module, mixing: float) -> torch.Tensor:
    labels = torch.tensor(Y.argmax(axis=1))
    return mixup_loss(
        network, torch.tensor(X), labels, torch.tensor(X_G), torch.tensor(Y_G), mixing
    )


@pytest.mark.parametrize("mixing", [0.0, 0.05, 0.4])
def test_the_loss_is_proposition_1(mixing: float):
    loss = approximated(torch_network(), mixing).item()
    assert loss == pytest.approx(by_hand(Smooth(parameters()), mixing), rel=1e-12)


def test_its_gradient_includes_that_of_the_slope():
    """By finite differences of the formula above, in every parameter."""
    mixing = 0.4
    network = torch_network()
    gradients = torch.autograd.grad(approximated(network, mixing), list(network.parameters()))
    for which, gradient in enumerate(gradients):
        expected = np.zeros(gradient.shape)
        for index in np.ndindex(*gradient.shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = parameters()
                moved[which][index] += step
                values.append(by_hand(Smooth(moved), mixing))
            expected[index] = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


def test_it_comes_near_to_mixup_as_the_square_of_lambda():
    """Without the slope's term the error would only halve with lambda."""
    network = Smooth(parameters())

    def error(mixing: float) -> float:
        mixed = 0.0
        for x, y, x_g, y_g in zip(X, Y, X_G, Y_G, strict=True):
            mixture = (1 - mixing) * x + mixing * x_g
            mixed += network.cross_entropy(mixture, (1 - mixing) * y + mixing * y_g) / len(X)
        return approximated(torch_network(), mixing).item() - mixed

    assert error(1e-3) / error(5e-4) == pytest.approx(4, rel=0.05)


# --- on a device --------------------------------------------------------------------------------


def recipe(**settings: float) -> Recipe:
    return replace(RECIPE, method=FedMix(**{"mixing": 0.3, "samples_per_device": 4, **settings}))


def averages(shard: LabelledImages = SHARD, **settings: float) -> SyntheticBatch:
    return method_of(recipe(**settings)).synthesise(work(recipe(**settings), shard)).batch


def test_a_step_mixes_each_image_with_an_average_of_the_pool():
    pool = averages(images(9, seed=2))
    training = TorchTraining(work(recipe(), SHARD, pool=pool.images, seed=11))
    rows = np.array([6, 2])
    drawn = choose(4, 2, generator(11, "synthetic"))
    loss = method_of(recipe()).torch_loss(training)(training.batch(rows, drawn)).value.item()

    model = model_with(SPEC, weights()).double()
    shares = pool.images.shares
    assert shares is not None
    total = 0.0
    for row, average in zip(rows, drawn, strict=True):
        x = (torch.tensor(SHARD.pixels[row]).double()[None] / 255 - 0.4) / 0.25
        x_g = (torch.tensor(pool.images.pixels[average]).double()[None] / 255 - 0.4) / 0.25

        def log_p(way: float, x: torch.Tensor = x, x_g: torch.Tensor = x_g) -> Array:
            return torch.log_softmax(model(0.7 * x + way * x_g), dim=1)[0].detach().numpy()

        c = SHARD.labels[row]
        total += -0.7 * log_p(0)[c] - 0.3 * (shares[average] @ log_p(0))
        total += 0.3 * -(log_p(1e-6)[c] - log_p(-1e-6)[c]) / 2e-6
    assert loss == pytest.approx(total / 2, rel=1e-4)


@pytest.mark.parametrize("pool", [None, images(0)], ids=["no pool", "an empty pool"])
def test_without_averages_it_is_fedavg(pool: LabelledImages | None):
    trained = method_of(recipe()).train(work(recipe(), SHARD, pool=pool))
    assert_same(trained.weights, method_of(RECIPE).train(work(RECIPE, SHARD)).weights)


def test_a_pool_without_averaged_labels_is_refused():
    with pytest.raises(InvalidInput, match="no class shares; FedMix needs"):
        method_of(recipe()).train(work(recipe(), SHARD, pool=images(4)))


def test_averages_are_of_pixels_and_of_labels():
    made = averages(images_per_average=3, samples_per_device=3)
    groups = choose(10, 9, generator(5, "averages")).reshape(3, 3)
    assert made.images.shares is not None
    for group, pixels, shares, label in zip(
        groups, made.images.pixels, made.images.shares, made.images.labels, strict=True
    ):
        exact = sum(SHARD.pixels[i].astype(float) for i in group) / 3
        assert np.abs(pixels - exact).max() <= 0.5
        counts = [sum(SHARD.labels[i] == c for i in group) for c in range(3)]
        assert shares.tolist() == pytest.approx([count / 3 for count in counts])
        assert counts[label] == max(counts)


def test_no_image_is_in_two_averages():
    pixels = np.zeros((6, 1, 16, 16), np.uint8)
    for i in range(6):
        pixels[i, 0, i] = 200  # each image has a row of its own, so an average tells its members
    shard = LabelledImages(pixels, np.arange(6) % 3)
    made = averages(shard, samples_per_device=100)
    assert len(made) == 3  # as many as there are disjoint pairs
    members = [np.flatnonzero(image[0, :6, 0]).tolist() for image in made.images.pixels]
    assert [len(pair) for pair in members] == [2, 2, 2]
    assert sorted(i for pair in members for i in pair) == [0, 1, 2, 3, 4, 5]
    assert (made.images.pixels.max(axis=(1, 2, 3)) == 100).all()


def test_leakage_is_measured_against_an_averaged_and_the_nearest_image():
    made = averages(samples_per_device=2)
    groups = choose(10, 4, generator(5, "averages")).reshape(2, 2)
    for i, (first, second) in enumerate(groups):
        halves = (SHARD.pixels[first].astype(float) - SHARD.pixels[second]) / 2 / 255
        expected = 10 * np.log10(1 / (halves**2).mean())
        assert made.psnr_paired[i] == pytest.approx(expected, abs=0.02)  # rounding to pixels
    np.testing.assert_array_equal(made.psnr_nearest, psnr_nearest(made.images.pixels, SHARD.pixels))


def test_a_device_with_too_few_images_is_refused():
    with pytest.raises(InvalidInput, match="average of 2"):
        averages(images(1))
    assert len(averages(images(2))) == 1
