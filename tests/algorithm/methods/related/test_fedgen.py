"""FedGen's three losses against formulas written out, and what devices and server send."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hfmds.algorithm.local_work import TrainedModel
from hfmds.algorithm.methods.method_registry import first_checkpoint, method_of
from hfmds.algorithm.methods.related.fedgen import diversity_loss
from hfmds.algorithm.models.building import model_with
from hfmds.algorithm.seeds import derive_seed, generator
from hfmds.algorithm.torch_steps.torch_training import TorchTraining
from hfmds.domain.learning import LabelledImages, Update, Weights
from hfmds.domain.methods import FedGen
from hfmds.domain.recipe import AggregationRecipe
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE, SPEC, assert_same, images, weights, work

Array = NDArray[np.float64]

SETTINGS = FedGen(
    label_weight=2.0,
    latent_weight=3.0,
    decay=0.9,
    noise_size=2,
    hidden_size=4,
    generator_steps=3,
    generator_batch_size=6,
    generator_learning_rate=0.01,
    diversity_weight=0.5,
)
FEDGEN = replace(RECIPE, method=SETTINGS)
METHOD = method_of(FEDGEN)
START = first_checkpoint(FEDGEN).weights
# Of classes 0 and 2 only.
SHARD = LabelledImages(images(10, seed=1).pixels, np.array([0, 0, 0, 2, 0, 2, 0, 0, 0, 2]))


def in_the_second_round() -> Weights:
    """A generator with statistics of its own, and a fleet that has classes 0 and 2."""
    random = np.random.default_rng(8)
    network = {
        name: random.uniform(0.1, 1.0, array.shape).astype(np.float32)
        for name, array in START.items()
        if name.startswith("generator/")
    }
    return {**START, **network, "fedgen/label_counts": np.array([7, 0, 1.5], np.float32)}


def log_softmax(logits: Array) -> Array:
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def generated(given: Weights, noise: Array, labels: Array) -> Array:
    """The generator as devices use it, with its running statistics."""
    part = {n.removeprefix("generator/"): a.astype(np.float64) for n, a in given.items()}
    hidden = np.concatenate([noise, np.eye(3)[labels]], axis=1) @ part["hidden.weight"].T
    hidden += part["hidden.bias"]
    deviation = np.sqrt(part["norm.running_var"] + 1e-5)
    hidden = (hidden - part["norm.running_mean"]) / deviation
    hidden = np.maximum(hidden * part["norm.weight"] + part["norm.bias"], 0)
    return np.maximum(hidden @ part["output.weight"].T + part["output.bias"], 0)


def test_diversity_is_written_out_pair_by_pair():
    random = np.random.default_rng(0)
    noise, features = random.normal(size=(4, 2)), random.normal(size=(4, 3))
    total = 0.0
    for i in range(4):
        for j in range(4):
            between_noise = sum((noise[i] - noise[j]) ** 2) / 2
            between_features = sum(abs(features[i] - features[j])) / 3
            total += between_noise * between_features
    expected = math.exp(-total / 16)
    assert diversity_loss(torch.tensor(noise), torch.tensor(features)).item() == pytest.approx(
        expected, rel=1e-12
    )
    alike = torch.ones(4, 3, dtype=torch.float64)
    assert diversity_loss(torch.tensor(noise), alike).item() == 1  # the worst there is


# --- on a device --------------------------------------------------------------------------------


def test_the_devices_loss_and_its_gradient_are_as_written_out():
    given, rows = in_the_second_round(), np.array([3, 0, 9, 5])
    training = TorchTraining(work(FEDGEN, SHARD, given, round_number=2, seed=11))
    loss = METHOD.torch_loss(training)(training.batch(rows)).value

    labels = SHARD.labels[rows]
    random = generator(11, "generated")
    same = generated(given, random.random((4, 2), dtype=np.float32), labels)
    drawn = random.choice([0, 2], 4)
    other = generated(given, random.random((4, 2), dtype=np.float32), drawn)

    x = (torch.tensor(SHARD.pixels[rows]).double() / 255 - 0.4) / 0.25
    z = model_with(SPEC, given).double().features(x).detach().numpy()
    row_of, bias = given["classifier.weight"].astype(float), given["classifier.bias"].astype(float)
    real, target, free = (log_softmax(f @ row_of.T + bias) for f in (z, same, other))
    on_real = -real[range(4), labels].mean()
    label = -free[range(4), drawn].mean()
    latent = (np.exp(target) * (target - real)).sum(axis=1).mean()
    expected = on_real + 0.9 * (2 * label + 3 * latent)
    assert loss.item() == pytest.approx(expected, rel=1e-5)

    # In the bias every cross-entropy has the slope p - y; the target of the latent term is fixed.
    y, y_drawn = np.eye(3)[labels], np.eye(3)[drawn]
    slope = (np.exp(real) - y) + 0.9 * (
        2 * (np.exp(free) - y_drawn) + 3 * (np.exp(real) - np.exp(target))
    )
    (gradient,) = torch.autograd.grad(loss, [training.model.classifier.bias])
    np.testing.assert_allclose(gradient, slope.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_the_regularisation_fades_from_round_to_round():
    rows = np.array([3, 0, 9, 5])

    def extra(round_number: int) -> float:
        task = work(FEDGEN, SHARD, in_the_second_round(), round_number=round_number)
        training = TorchTraining(task)
        batch = training.batch(rows)
        plain = method_of(RECIPE).torch_loss(training)(batch).value.item()
        return METHOD.torch_loss(training)(batch).value.item() - plain

    assert extra(2) > 0.1
    assert extra(5) == pytest.approx(extra(2) * 0.9**3, rel=1e-4)


def test_the_first_round_is_fedavg_because_the_generator_knows_nothing():
    trained = METHOD.train(work(FEDGEN, SHARD, START)).weights
    plain = method_of(RECIPE).train(work(RECIPE, SHARD, weights_of_the_classifier(START))).weights
    assert_same(weights_of_the_classifier(trained), plain)


def weights_of_the_classifier(given: Weights) -> Weights:
    return {name: array for name, array in given.items() if "/" not in name}


def test_a_device_sends_its_classifier_and_how_many_of_each_class_it_has():
    trained = METHOD.train(work(FEDGEN, SHARD, in_the_second_round(), round_number=2)).weights
    assert trained.keys() == {*weights(), "fedgen/label_counts"}
    assert trained["fedgen/label_counts"].tolist() == [7, 0, 3]
    assert trained["fedgen/label_counts"].dtype == np.float32


# --- on the server ------------------------------------------------------------------------------


def update(device_id: str, seed: int, counts: list[int]) -> Update:
    held = {**weights(seed), "fedgen/label_counts": np.array(counts, np.float32)}
    return Update(device_id, held, samples=sum(counts), loss=1.0)


UPDATES = [update("a", 1, [4, 0, 1]), update("b", 2, [2, 0, 1])]


def test_the_server_averages_what_devices_train_and_changes_the_generator_alone_besides():
    after = METHOD.aggregate(1, START, UPDATES).weights
    assert after.keys() == START.keys()
    for name in (*weights(), "fedgen/label_counts"):
        mean = (UPDATES[0].weights[name].astype(np.float64) + UPDATES[1].weights[name]) / 2
        np.testing.assert_array_equal(after[name], mean.astype(np.float32))
    for name in START:
        if name.startswith("generator/"):
            assert not np.array_equal(after[name], START[name]), name


@pytest.mark.parametrize(
    "aggregation",
    [
        AggregationRecipe(rule="median"),
        AggregationRecipe(weighting="samples"),
        AggregationRecipe(clip_norm=1e-3, optimiser="fedavgm", server_learning_rate=0.1),
    ],
    ids=["median", "by samples", "clipped, with momentum"],
)
def test_class_counts_stay_the_plain_mean_however_updates_are_combined(
    aggregation: AggregationRecipe,
):
    method = method_of(replace(FEDGEN, aggregation=aggregation))
    three = [*UPDATES, update("c", 3, [0, 9, 1])]
    after = method.aggregate(1, START, three).weights
    assert after["fedgen/label_counts"].tolist() == [2, 3, 1]
    plain = METHOD.aggregate(1, START, three).weights
    assert not np.array_equal(after["classifier.weight"], plain["classifier.weight"])


def test_whom_multi_krum_leaves_out_does_not_teach_the_generator():
    krum = AggregationRecipe(rule="multi_krum", hostile_devices=0, kept_devices=2)
    method = method_of(replace(FEDGEN, aggregation=krum))
    far = {n: w + 50 if "/" not in n else w for n, w in UPDATES[0].weights.items()}
    three = [*UPDATES, replace(UPDATES[0], device_id="c", weights=far)]
    kept = method.aggregate(1, START, three)
    assert kept.devices == ("a", "b")
    assert_same(kept.weights, METHOD.aggregate(1, START, UPDATES).weights)


def test_the_generator_follows_its_loss_as_written_out():
    """Three steps in float64: torch's Adam on the shares' cross-entropies and on diversity."""
    after = METHOD.aggregate(1, START, UPDATES).weights
    own = {
        n.removeprefix("generator/"): torch.tensor(a).double()
        for n, a in START.items()
        if n.startswith("generator/")
    }
    trained = [n for n in own if "running" not in n and "num_batches" not in n]
    for name in trained:
        own[name].requires_grad_()
    adam = torch.optim.Adam([own[n] for n in trained], lr=0.01)
    share = {0: [4 / 6, 2 / 6], 2: [1 / 2, 1 / 2]}  # of devices a and b in each class
    random = generator(derive_seed(7, "generator", 1), "teach")
    for _ in range(3):
        labels = random.choice([0, 2], 6)
        noise = torch.tensor(random.random((6, 2), dtype=np.float32)).double()
        given = torch.cat([noise, torch.eye(3).double()[labels]], dim=1)
        hidden = given @ own["hidden.weight"].T + own["hidden.bias"]
        mean, var = hidden.mean(dim=0), hidden.var(dim=0, unbiased=False)
        for name, value in (("mean", mean), ("var", var * 6 / 5)):
            running = own[f"norm.running_{name}"]
            running.copy_(0.9 * running + 0.1 * value.detach())
        hidden = (hidden - mean) / (var + 1e-5).sqrt() * own["norm.weight"] + own["norm.bias"]
        z = (hidden.clamp(min=0) @ own["output.weight"].T + own["output.bias"]).clamp(min=0)
        loss = torch.zeros((), dtype=torch.float64)
        for device, sent in enumerate(UPDATES):
            head = torch.tensor(sent.weights["classifier.weight"]).double()
            logits = z @ head.T + torch.tensor(sent.weights["classifier.bias"]).double()
            for i, c in enumerate(labels.tolist()):
                loss = loss - share[c][device] * torch.log_softmax(logits[i], dim=0)[c] / 6
        pairs = torch.zeros((), dtype=torch.float64)
        for i in range(6):
            for j in range(6):
                apart = (noise[i] - noise[j]).square().mean()
                pairs = pairs + apart * (z[i] - z[j]).abs().mean() / 36
        adam.zero_grad()
        (loss + 0.5 * torch.exp(-pairs)).backward()
        adam.step()
    assert after["generator/norm.num_batches_tracked"] == 3
    # The normalisation takes the hidden bias out again: its gradient is rounding alone, and so is
    # the way it goes, which the running mean follows.
    for name in own.keys() - {"norm.num_batches_tracked", "hidden.bias", "norm.running_mean"}:
        expected = own[name].detach().numpy()
        np.testing.assert_allclose(after[f"generator/{name}"], expected, atol=1e-4, err_msg=name)


def test_it_learns_features_that_the_devices_recognise():
    recipe = replace(FEDGEN, method=replace(SETTINGS, generator_steps=100))
    after = method_of(recipe).aggregate(1, START, UPDATES).weights
    labels = np.array([0, 2] * 20)
    noise = generator(0, "fresh").random((40, 2))
    z = generated(after, noise, labels)
    for sent in UPDATES:
        logits = z @ sent.weights["classifier.weight"].T + sent.weights["classifier.bias"]
        assert np.mean(logits.argmax(axis=1) == labels) > 0.9


def test_the_same_updates_give_the_same_generator_and_another_round_another():
    first, again, other = (METHOD.aggregate(t, START, UPDATES).weights for t in (1, 1, 2))
    assert_same(first, again)
    assert not np.array_equal(first["generator/output.bias"], other["generator/output.bias"])


def test_an_update_without_class_counts_is_refused_by_its_devices_name():
    without = Update("b", weights(2), samples=3, loss=1.0)
    with pytest.raises(InvalidInput, match=r"device 'b' .*fedgen/label_counts"):
        METHOD.aggregate(1, START, [UPDATES[0], without])


@pytest.mark.parametrize("counts", [[4, -1, 1], [0, 0, 0]])
def test_class_counts_that_cannot_be_are_refused_by_their_devices_name(counts: list[int]):
    with pytest.raises(InvalidInput, match=r"device 'b'.*negative"):
        METHOD.aggregate(1, START, [UPDATES[0], update("b", 2, counts)])


def test_a_generator_that_diverges_stays_as_it_was(caplog: pytest.LogCaptureFixture):
    """The same updates would make it diverge again: a run must be able to go on."""
    huge = {**UPDATES[1].weights, "classifier.weight": np.full((3, 512), 3e38, np.float32)}
    aggregate = METHOD.aggregate(1, START, [UPDATES[0], replace(UPDATES[1], weights=huge)])
    after = aggregate.weights
    assert "round 1: the generator stays as it was: training diverged" in caplog.text
    assert aggregate.trouble in caplog.text
    assert aggregate.trouble
    for name in START:
        if name.startswith("generator/"):
            np.testing.assert_array_equal(after[name], START[name])


def test_training_goes_on_from_the_taught_generator():
    after = METHOD.aggregate(1, START, UPDATES).weights
    trained: TrainedModel = METHOD.train(work(FEDGEN, SHARD, after, round_number=2))
    assert math.isfinite(trained.loss)
    untaught = {**after, **{n: a for n, a in START.items() if n.startswith("generator/")}}
    other = METHOD.train(work(FEDGEN, SHARD, untaught, round_number=2))
    assert not np.array_equal(trained.weights["classifier.bias"], other.weights["classifier.bias"])
