from __future__ import annotations

import numpy as np
import pytest
import torch

from hfmds.algorithm.models import model_with, weights_of
from hfmds.algorithm.sampling import choose, epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.training import train
from hfmds.algorithm.types import LabelledImages, Weights
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE, SPEC, assert_same, images, weights

SHARD = images(10, seed=1)
POOL = images(9, seed=2)


def naive_train(pool: LabelledImages | None, seed: int) -> tuple[Weights, float]:
    """Equation (6) as printed, by torch.optim.SGD and two forwards; the loss of the last epoch."""
    settings = RECIPE.training
    model = model_with(SPEC, weights())
    sgd = torch.optim.SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )

    def cross_entropy(source: LabelledImages, rows: np.ndarray) -> torch.Tensor:
        pixels = torch.tensor(source.pixels[rows]).float() / 255
        log_p = torch.log_softmax(model((pixels - 0.4) / 0.25), dim=1)
        return -log_p[range(len(rows)), torch.tensor(source.labels[rows])].mean()

    real_order, synthetic_order = generator(seed, "real"), generator(seed, "synthetic")
    for _ in range(settings.local_epochs):
        losses = []
        for rows in epoch_batches(len(SHARD), settings.batch_size, real_order):
            loss = cross_entropy(SHARD, rows)
            if pool is not None:
                other = cross_entropy(pool, choose(len(pool), len(rows), synthetic_order))
                loss = settings.alpha * loss + (1 - settings.alpha) * other
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            losses.append(loss.item())
    return weights_of(model), float(np.mean(losses))


@pytest.mark.parametrize("pool", [None, POOL], ids=["without pool", "with pool"])
def test_agrees_with_a_naive_loop(pool: LabelledImages | None):
    expected, expected_loss = naive_train(pool, seed=11)
    trained = train(RECIPE, weights(), SHARD, pool, seed=11)
    assert trained.samples == 10
    assert trained.loss == pytest.approx(expected_loss, rel=1e-4)
    for name, array in trained.weights.items():
        np.testing.assert_allclose(array, expected[name], atol=2e-5, err_msg=name)
        assert not np.allclose(array, weights()[name], atol=2e-4), f"{name} was not trained"


def test_same_seed_same_weights_and_the_inputs_stay_untouched():
    given = weights()
    first = train(RECIPE, given, SHARD, POOL, seed=1)
    assert_same(first.weights, train(RECIPE, given, SHARD, POOL, seed=1).weights)
    assert_same(given, weights())
    other = train(RECIPE, given, SHARD, POOL, seed=2)
    assert not np.array_equal(first.weights["conv1.weight"], other.weights["conv1.weight"])


def test_an_empty_pool_is_no_pool():
    empty = POOL.take(np.array([], np.int64))
    without = train(RECIPE, weights(), SHARD, None, seed=1)
    assert_same(without.weights, train(RECIPE, weights(), SHARD, empty, seed=1).weights)


def test_progress_counts_every_step():
    seen: list[tuple[int, int]] = []
    train(RECIPE, weights(), SHARD, POOL, seed=1, progress=lambda *step: seen.append(step))
    assert seen == [(i, 6) for i in range(1, 7)]  # 2 epochs of 4 + 4 + 2


def test_progress_can_end_the_work():
    def lease_lost(done: int, _: int) -> None:
        if done == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        train(RECIPE, weights(), SHARD, None, seed=1, progress=lease_lost)


def test_divergence_names_the_step():
    broken = dict(weights())
    broken["hidden.bias"] = np.full(512, np.nan, np.float32)
    with pytest.raises(InvalidInput, match=r"the loss is nan at step 1 of 6; lower"):
        train(RECIPE, broken, SHARD, None, seed=1)


def test_unfit_data_are_refused():
    with pytest.raises(InvalidInput, match="shard is empty"):
        train(RECIPE, weights(), SHARD.take(np.array([], np.int64)), None, seed=1)
    bad_labels = LabelledImages(SHARD.pixels, SHARD.labels + 1)
    with pytest.raises(InvalidInput, match=r"the device's shard: labels run from 1 to 3"):
        train(RECIPE, weights(), bad_labels, None, seed=1)
    wide = LabelledImages(np.zeros((2, 1, 16, 17), np.uint8), np.zeros(2, np.int64))
    with pytest.raises(InvalidInput, match=r"the synthetic pool: images are \[1, 16, 17\]"):
        train(RECIPE, weights(), SHARD, wide, seed=1)
