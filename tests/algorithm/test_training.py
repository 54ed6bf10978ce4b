"""Local training, without a pool by FedAvg and with one by HFMDS-FL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hfmds.algorithm.local_work import Progress, TrainedModel, no_progress
from hfmds.algorithm.methods.method_registry import method_of
from hfmds.algorithm.models.building import initial_weights, model_with, weights_of
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.prototypes import prototypes_at_refresh
from hfmds.algorithm.sampling import choose, epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.torch_steps.torch_training import (
    Batch,
    BatchLoss,
    SgdSteps,
    TorchTraining,
)
from hfmds.algorithm.training import train as train_locally
from hfmds.domain.learning import LabelledImages, Weights
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import Normalisation, TrainingRecipe
from hfmds.errors import InvalidInput
from tests.algorithm.examples import (
    HFMDS,
    RECIPE,
    SPEC,
    assert_same,
    images,
    recipe_for,
    weights,
    work,
)

SHARD = images(10, seed=1)
POOL = images(9, seed=2)


def train(
    pool: LabelledImages | None = None,
    seed: int = 1,
    given: Weights | None = None,
    shard: LabelledImages = SHARD,
    progress: Progress = no_progress,
) -> TrainedModel:
    return method_of(HFMDS).train(work(HFMDS, shard, given, seed=seed, pool=pool), progress)


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
    trained = train(pool, seed=11)
    assert trained.samples == 10
    assert trained.loss == pytest.approx(expected_loss, rel=1e-4)
    for name, array in trained.weights.items():
        np.testing.assert_allclose(array, expected[name], atol=2e-5, err_msg=name)
        assert not np.allclose(array, weights()[name], atol=2e-4), f"{name} was not trained"


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_alpha_weighs_the_real_loss_and_the_rest_the_synthetic_one(alpha: float):
    recipe = replace(HFMDS, training=replace(HFMDS.training, alpha=alpha))
    training = TorchTraining(work(recipe, SHARD, pool=POOL, seed=11))
    drawn = choose(9, 3, generator(11, "synthetic"))
    batch = training.batch(np.array([2, 7, 5]), drawn)
    loss = method_of(recipe).torch_loss(training)(batch).value.item()

    real = mean_cross_entropy(SHARD, [2, 7, 5])
    synthetic = mean_cross_entropy(POOL, drawn.tolist())
    assert loss == pytest.approx(alpha * real + (1 - alpha) * synthetic, rel=1e-5)
    assert real != pytest.approx(synthetic, rel=1e-3)


def mean_cross_entropy(source: LabelledImages, rows: list[int]) -> float:
    """Of the untrained model, in float64 and sample by sample."""
    total = 0.0
    for row in rows:
        image = (source.pixels[row].astype(np.float64) / 255 - 0.4) / 0.25
        q = model_with(SPEC, weights()).double()(torch.tensor(image)[None])[0].tolist()
        total += np.log(np.exp(q).sum()) - q[source.labels[row]]
    return total / len(rows)


def test_a_batch_is_normalised_as_everywhere_and_laid_out_for_speed():
    recipe = replace(
        HFMDS,
        model=replace(SPEC, channels=3),
        normalisation=Normalisation((0.4, 0.5, 0.3), (0.25, 0.2, 0.3)),
    )
    random = np.random.default_rng(0)
    shard, pool = (
        LabelledImages(
            random.integers(0, 256, (count, *recipe.model.image_shape), dtype=np.uint8),
            random.integers(0, 3, count),
        )
        for count in (6, 4)
    )
    given = initial_weights(recipe.model, 0)
    training = TorchTraining(work(recipe, shard, given, pool=pool))
    batch = training.batch(np.array([5, 0, 2]), np.array([3, 1]))
    pixels = np.concatenate([shard.pixels[[5, 0, 2]], pool.pixels[[3, 1]]])
    np.testing.assert_array_equal(batch.images.numpy(), normalise(pixels, recipe.normalisation))
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.labels.tolist() == [*shard.labels[[5, 0, 2]], *pool.labels[[3, 1]]]


def test_a_pool_in_half_precision_is_normalised_as_everywhere():
    random = np.random.default_rng(1)
    halves = random.uniform(0, 1, (4, *SPEC.image_shape)).astype(np.float16)
    pool = LabelledImages(halves, np.array([0, 1, 2, 0]))
    training = TorchTraining(work(HFMDS, SHARD, pool=pool))
    batch = training.batch(np.array([1]), np.array([3, 0]))
    own, others = normalise(SHARD.pixels[[1]], RECIPE.normalisation), halves[[3, 0]]
    expected = np.concatenate([own, normalise(others, RECIPE.normalisation)])
    np.testing.assert_array_equal(batch.images.numpy(), expected)


def test_fedavg_does_not_look_at_a_pool():
    fedavg = method_of(RECIPE)
    with_pool = fedavg.train(work(RECIPE, SHARD, pool=POOL, seed=1))
    assert_same(with_pool.weights, fedavg.train(work(RECIPE, SHARD, seed=1)).weights)
    assert_same(with_pool.weights, train(None).weights)


def test_same_seed_same_weights_and_the_inputs_stay_untouched():
    given = weights()
    first = train(POOL, given=given)
    assert_same(first.weights, train(POOL, given=given).weights)
    assert_same(given, weights())
    other = train(POOL, seed=2)
    assert not np.array_equal(first.weights["conv1.weight"], other.weights["conv1.weight"])


def test_an_empty_pool_is_no_pool():
    empty = POOL.take(np.array([], np.int64))
    assert_same(train(None).weights, train(empty).weights)


def test_progress_counts_every_step():
    seen: list[tuple[int, int]] = []
    train(POOL, progress=lambda *step: seen.append(step))
    assert seen == [(i, 6) for i in range(1, 7)]  # 2 epochs of 4 + 4 + 2


def test_progress_can_end_the_work():
    def lease_lost(done: int, _: int) -> None:
        if done == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        train(progress=lease_lost)


def test_divergence_names_the_step():
    broken = {**weights(), "hidden.bias": np.full(512, np.nan, np.float32)}
    with pytest.raises(InvalidInput, match=r"nan at step 1 of 6"):
        train(given=broken)


def test_unfit_data_are_refused():
    with pytest.raises(InvalidInput, match="shard"):
        train(shard=SHARD.take(np.array([], np.int64)))
    bad_labels = LabelledImages(SHARD.pixels, SHARD.labels + 1)
    with pytest.raises(InvalidInput, match=r"shard.*1 to 3"):
        train(shard=bad_labels)
    wide = LabelledImages(np.zeros((2, 1, 16, 17), np.uint8), np.zeros(2, np.int64))
    with pytest.raises(InvalidInput, match=r"pool.*\[1, 16, 17\]"):
        train(wide)


def test_a_later_learning_rate_takes_its_place_in_its_round():
    falling = TrainingRecipe(learning_rate=0.5, later_from_round=3, later_learning_rate=0.05)
    rates = [falling.in_round(number).learning_rate for number in (1, 2, 3, 9)]
    assert rates == [0.5, 0.5, 0.05, 0.05]
    assert all(falling.in_round(number).later_from_round == 0 for number in (1, 3))
    assert TrainingRecipe(learning_rate=0.5).in_round(9).learning_rate == 0.5


@pytest.mark.parametrize("name", ["fedavg", "moon", "hfmds"])
def test_devices_train_at_the_rate_of_the_round(name: str):
    recipe = recipe_for(name)
    falling = replace(recipe.training, later_from_round=2, later_learning_rate=0.005)
    slow = replace(recipe.training, learning_rate=0.005)
    for number, wanted in ((1, recipe.training), (2, slow)):
        ours, expected = (
            method_of(recipe).train(
                work(replace(recipe, training=one), images(6), round_number=number)
            )
            for one in (falling, wanted)
        )
        assert_same(ours.weights, expected.weights)


@pytest.mark.parametrize("changes", [{"later_from_round": 3}, {"later_learning_rate": 0.1}])
def test_a_later_learning_rate_without_its_round_is_refused(changes: dict[str, float]):
    with pytest.raises(InvalidInput, match="later_from_round"):
        TrainingRecipe(**changes)  # type: ignore[arg-type]


# --- prototypes of the local model ----------------------------------------------------------------

LOCAL = replace(HFMDS, method=replace(HFMDS.method, local_prototypes=True, prototype_momentum=0.25))


def test_local_prototypes_are_running_means_of_what_the_local_model_gives_in_training():
    before = {"1": np.full(512, 3, np.float32)}
    task = work(LOCAL, SHARD, seed=1, pool=POOL, memory=before)
    trained = method_of(LOCAL).train(task)
    assert_same(trained.weights, train(POOL).weights)  # looking on changes nothing

    found: dict[int, list[np.ndarray]] = {}
    training = TorchTraining(task)
    loss = method_of(LOCAL).torch_loss(training)

    def observed(batch: Batch) -> BatchLoss:
        real = len(batch.labels) // 2
        with torch.no_grad():
            z = training.model.features(batch.images[:real])
        for label, features in zip(batch.labels[:real].tolist(), z.numpy(), strict=True):
            found.setdefault(label, []).append(features.copy())
        return loss(batch)

    train_locally(task, SgdSteps(training, observed))
    assert sorted(trained.memory) == sorted(str(c) for c in found)
    for c, features in found.items():
        mean = np.mean(features, axis=0)
        wanted = 0.75 * mean + 0.25 * before[str(c)] if str(c) in before else mean
        np.testing.assert_allclose(trained.memory[str(c)], wanted, rtol=0, atol=1e-5)


def test_a_synthesis_with_local_prototypes_takes_them_as_they_are():
    features = np.arange(512, dtype=np.float32)
    given = {str(c): features + c for c in range(3)}
    assert isinstance(LOCAL.method, Hfmds)
    zeros = np.zeros((len(SHARD), 512), np.float32)
    taken = prototypes_at_refresh(given, zeros, SHARD.labels, LOCAL.method)
    assert_same({str(c): zbar for c, zbar in taken.items()}, given)
    made = method_of(LOCAL).synthesise(work(LOCAL, SHARD, memory=given))
    assert made.memory == {}  # only training leaves something to read
    usual = method_of(HFMDS).synthesise(work(HFMDS, SHARD, memory=given))
    assert made.health
    assert usual.health
    assert made.health.hard_margin != usual.health.hard_margin
