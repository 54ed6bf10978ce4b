"""FedGAN: its adversarial step as written out, its two kinds of rounds, its images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hfmds.algorithm.federation import federate
from hfmds.algorithm.leakage.measurement import psnr_nearest, psnr_paired
from hfmds.algorithm.methods.method_registry import first_checkpoint, method_of
from hfmds.algorithm.methods.related.fedgan import Discriminator, Generator
from hfmds.algorithm.models.building import load_weights
from hfmds.algorithm.models.weight_groups import part_of
from hfmds.algorithm.pixels import levels
from hfmds.algorithm.sampling import choose, epoch_batches
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.domain.learning import LabelledImages, Weights
from hfmds.domain.methods import FedGan
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import ModelSpec, Normalisation
from hfmds.errors import InvalidInput
from tests.algorithm.examples import HFMDS, RECIPE, SPEC, assert_same, images, weights, work

SETTINGS = FedGan(
    gan_rounds=2,
    gan_epochs=2,
    gan_batch_size=4,
    gan_learning_rate=0.01,
    noise_size=3,
    width=2,
    samples_per_device=5,
)
FEDGAN = replace(RECIPE, method=SETTINGS, rounds=4)
METHOD = method_of(FEDGAN)
START = first_checkpoint(FEDGAN).weights
# Of classes 0 and 2 only.
SHARD = LabelledImages(images(6, seed=1).pixels, np.array([0, 0, 2, 0, 2, 0]))


def networks(given: Weights = START) -> tuple[Generator, Discriminator]:
    made = Generator(SPEC, FEDGAN.normalisation, SETTINGS)
    judging = Discriminator(SPEC, SETTINGS)
    load_weights(made, part_of(given, "gan/generator"))
    load_weights(judging, part_of(given, "gan/discriminator"))
    return made, judging


def of_the_gan(given: Weights) -> Weights:
    return {name: array for name, array in given.items() if name.startswith("gan/")}


def of_the_classifier(given: Weights) -> Weights:
    return {name: array for name, array in given.items() if "/" not in name}


def test_a_gan_round_is_adam_on_the_two_losses_as_written_out():
    """Two passes over the shard in float64; log D(x) and log(1 - D(x)) by the sigmoid itself."""
    trained = METHOD.train(work(FEDGAN, SHARD, START))
    made, judging = (network.double() for network in networks())
    adam = {
        network: torch.optim.Adam(network.parameters(), lr=0.01, betas=(0.5, 0.999))
        for network in (made, judging)
    }
    order, noise = generator(5, "real"), generator(5, "noise")

    def fake(labels: torch.Tensor) -> torch.Tensor:
        drawn = noise.standard_normal((len(labels), 3), dtype=np.float32)
        return made(torch.tensor(drawn).double(), labels)

    def step(network: torch.nn.Module, loss: torch.Tensor) -> None:
        adam[network].zero_grad()
        loss.backward()
        adam[network].step()

    for _ in range(2):
        losses = []
        for rows in epoch_batches(6, 4, order):
            real = (torch.tensor(SHARD.pixels[rows]).double() / 255 - 0.4) / 0.25
            labels = torch.tensor(SHARD.labels[rows])
            on_real = -torch.log(torch.sigmoid(judging(real, labels))).mean()
            on_fake = -torch.log(1 - torch.sigmoid(judging(fake(labels), labels))).mean()
            losses.append((on_real + on_fake).item())
            step(judging, on_real + on_fake)
            step(made, -torch.log(torch.sigmoid(judging(fake(labels), labels))).mean())
    assert trained.loss == pytest.approx(np.mean(losses), rel=1e-3)
    assert trained.samples == 6
    for part, network in (("gan/generator", made), ("gan/discriminator", judging)):
        for name, expected in network.state_dict().items():
            array = trained.weights[f"{part}/{name}"]
            # A gradient that vanishes is rounded to either side, and Adam only sees its sign.
            close = np.isclose(array, expected.numpy(), atol=1e-3)
            assert close.mean() > 0.97, (part, name)
            if name != "of_class.weight":
                assert not np.array_equal(array, START[f"{part}/{name}"]), (part, name)


def test_a_class_that_a_device_does_not_have_is_left_to_the_others():
    trained = METHOD.train(work(FEDGAN, SHARD, START)).weights["gan/discriminator/of_class.weight"]
    before = START["gan/discriminator/of_class.weight"]
    assert np.array_equal(trained[1], before[1])
    assert not np.array_equal(trained[0], before[0])
    assert not np.array_equal(trained[2], before[2])


def test_gan_rounds_change_the_gan_alone_and_the_rounds_after_them_the_classifier():
    shards = {"a": SHARD, "b": images(5, seed=2)}
    fleet = LocalFleet(FEDGAN, shards)
    rounds = [START]
    for result in federate(fleet, FEDGAN, first_checkpoint(FEDGAN)):
        rounds.append(result.checkpoint.weights)
        assert result.refreshed == (result.checkpoint.round_number == 3)
    for t in (1, 2):
        assert_same(of_the_classifier(rounds[t]), of_the_classifier(rounds[t - 1]))
        assert_differ(of_the_gan(rounds[t]), of_the_gan(rounds[t - 1]))
    for t in (3, 4):
        assert_differ(of_the_classifier(rounds[t]), of_the_classifier(rounds[t - 1]))
        assert_same(of_the_gan(rounds[t]), of_the_gan(rounds[t - 1]))


def assert_differ(left: Weights, right: Weights) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if np.array_equal(left[name], right[name])] == []


def test_a_device_sends_what_it_trained_and_nothing_else():
    early = METHOD.train(work(FEDGAN, SHARD, START, round_number=2)).weights
    assert early.keys() == of_the_gan(START).keys()
    late = METHOD.train(work(FEDGAN, SHARD, START, round_number=3, pool=images(4))).weights
    assert late.keys() == weights().keys()


def test_with_its_pool_the_classifier_trains_as_with_any_other():
    task = work(FEDGAN, SHARD, START, round_number=3, pool=images(4))
    like_hfmds = work(HFMDS, SHARD, of_the_classifier(START), round_number=3, pool=images(4))
    assert_same(METHOD.train(task).weights, method_of(HFMDS).train(like_hfmds).weights)


def test_images_are_made_by_the_averaged_generator_for_the_devices_own_classes():
    made = METHOD.synthesise(work(FEDGAN, SHARD, START)).batch
    subset = choose(6, 5, generator(5, "subset"))
    assert made.images.labels.tolist() == SHARD.labels[subset].tolist()
    assert 1 not in made.images.labels
    noise = generator(5, "noise").standard_normal((5, 3), dtype=np.float32)
    network, _ = networks()
    with torch.no_grad():
        image = network(torch.tensor(noise), torch.tensor(SHARD.labels[subset])).numpy()
    np.testing.assert_allclose(made.images.pixels, (image * 0.25 + 0.4) * 255, atol=0.501)
    real = SHARD.pixels[subset]
    np.testing.assert_array_equal(made.psnr_paired, psnr_paired(made.images.pixels, real))
    np.testing.assert_array_equal(made.psnr_nearest, psnr_nearest(made.images.pixels, SHARD.pixels))


def test_images_can_be_made_in_half_precision():
    recipe = replace(FEDGAN, pool=PoolPolicy(pixel_type="fp16"))
    fine = method_of(recipe).synthesise(work(recipe, SHARD, START)).batch.images.pixels
    coarse = METHOD.synthesise(work(FEDGAN, SHARD, START)).batch.images.pixels
    assert fine.dtype == np.float16
    np.testing.assert_allclose(levels(fine), coarse, atol=0.6)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (17, 22)])
@pytest.mark.parametrize("channels_near_image", [1, 3, 8])
def test_generated_images_have_the_models_shape_and_valid_pixels(
    height: int, width: int, channels_near_image: int
):
    spec = ModelSpec(channels=2, height=height, width=width, classes=3)
    settings = replace(SETTINGS, width=channels_near_image)
    torch.manual_seed(0)
    network = Generator(spec, Normalisation((0.2, 0.6), (0.5, 0.1)), settings)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(20)  # as far as a generator may go
        made = network(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    assert made.shape == (4, 2, height, width)
    mean, std = torch.tensor([[0.2, 0.6], [0.5, 0.1]]).reshape(2, 2, 1, 1)
    pixels = made * std + mean
    assert pixels.min() >= -1e-6
    assert pixels.max() <= 1 + 1e-6
    assert pixels.max() - pixels.min() > 0.5
    assert Discriminator(spec, settings)(made, torch.tensor([0, 1, 2, 0])).shape == (4,)


def test_the_discriminator_judges_an_image_by_its_class():
    _, judging = networks()
    image = torch.randn(1, *SPEC.image_shape)
    as_first, as_second = (judging(image, torch.tensor([c])) for c in (0, 1))
    assert as_first.item() != as_second.item()


def test_divergence_names_the_step():
    broken = {**START, "gan/generator/output.bias": np.array([np.nan], np.float32)}
    with pytest.raises(InvalidInput, match=r"step 1 of 4; lower fedgan.gan_learning_rate"):
        METHOD.train(work(FEDGAN, SHARD, broken))


def test_progress_counts_every_step():
    seen: list[tuple[int, int]] = []
    METHOD.train(work(FEDGAN, SHARD, START), lambda *step: seen.append(step))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_run_that_ends_before_the_classifier_is_trained_is_refused():
    with pytest.raises(InvalidInput, match="rounds is 2, but fedgan"):
        replace(FEDGAN, rounds=2)
