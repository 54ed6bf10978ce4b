"""FedGAN (Rasouli, Sun, Rajagopal, 2020): a generative adversarial network by averaging.

In each of the first rounds, every device trains generator and discriminator on its own data, and
the server averages both (FedGAN's Algorithm 1, with one round as the synchronisation interval). The
HFMDS-FL paper does this before it trains the classifier. Then each device makes images with the
averaged generator, and the classifier learns from own data and that pool.

The HFMDS-FL paper does not name the networks. Ours are small, and conditional on the class because
images need labels. The generator has transposed convolutions. The discriminator has strided
convolutions and a projection of the class (Miyato and Koyama, 2018). The norm is GroupNorm: a
device's batches have one or two classes, and batch statistics would give away which.

Departure: FedGAN weights devices by their samples. Here the mean is uniform, as for all methods.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from hfmds.algorithm.leakage.measurement import measure_leakage
from hfmds.algorithm.local_work import (
    LocalWork,
    Progress,
    Synthesis,
    TrainedModel,
    no_progress,
)
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.models.building import load_weights, seeded, weights_of
from hfmds.algorithm.models.weight_groups import as_part, part_of
from hfmds.algorithm.pixels import normalise, to_pixels
from hfmds.algorithm.sampling import Indices, choose
from hfmds.algorithm.seeds import derive_seed, generator
from hfmds.algorithm.torch_steps.optimisers import Adam
from hfmds.algorithm.training import run_epochs
from hfmds.domain.learning import LabelledImages, Weights
from hfmds.domain.methods import FedGan
from hfmds.domain.recipe import ModelSpec, Normalisation

_BETAS = (0.5, 0.999)  # of Adam, as usual for GANs
_SLOPE = 0.2  # of the leaky ReLU
_CHUNK = 256  # images at a time where no gradient is needed, to bound memory


class Generator(nn.Module):
    """Turns noise and a class into an image in the model's normalised space."""

    def __init__(self, spec: ModelSpec, normalisation: Normalisation, settings: FedGan) -> None:
        super().__init__()
        self._shape = spec.image_shape
        self._start = (4 * settings.width, math.ceil(spec.height / 4), math.ceil(spec.width / 4))
        self.noise_size = settings.noise_size
        self.classes = spec.classes
        wide, middle, narrow = 4 * settings.width, 2 * settings.width, settings.width
        self.input = nn.Linear(settings.noise_size + spec.classes, math.prod(self._start))
        self.norm1 = nn.GroupNorm(4, wide)
        self.up1 = nn.ConvTranspose2d(wide, middle, 4, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(2, middle)
        self.up2 = nn.ConvTranspose2d(middle, narrow, 4, stride=2, padding=1)
        self.norm3 = nn.GroupNorm(1, narrow)
        self.output = nn.Conv2d(narrow, spec.channels, 3, padding=1)
        # Constants of the recipe: they do not travel with the weights.
        mean = torch.tensor(normalisation.mean).reshape(-1, 1, 1)
        std = torch.tensor(normalisation.std).reshape(-1, 1, 1)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Return one image per row."""
        one_hot = F.one_hot(labels, self.classes).to(noise.dtype)
        x = self.input(torch.cat([noise, one_hot], dim=1)).reshape(-1, *self._start)
        x = self.up1(F.relu(self.norm1(x)))
        x = self.up2(F.relu(self.norm2(x)))
        x = torch.sigmoid(self.output(F.relu(self.norm3(x))))  # valid pixels, in [0, 1]
        _, height, width = self._shape
        return (x[:, :, :height, :width] - self.mean) / self.std


class Discriminator(nn.Module):
    """Judges how real an image of its class looks."""

    def __init__(self, spec: ModelSpec, settings: FedGan) -> None:
        super().__init__()
        narrow, middle, wide = settings.width, 2 * settings.width, 4 * settings.width
        self.down1 = nn.Conv2d(spec.channels, narrow, 4, stride=2, padding=1)
        self.down2 = nn.Conv2d(narrow, middle, 4, stride=2, padding=1)
        self.down3 = nn.Conv2d(middle, wide, 4, stride=2, padding=1)
        self.output = nn.Linear(wide, 1)
        self.of_class = nn.Embedding(spec.classes, wide)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return one logit per image."""
        x = F.leaky_relu(self.down1(images), _SLOPE)
        x = F.leaky_relu(self.down2(x), _SLOPE)
        x = F.leaky_relu(self.down3(x), _SLOPE).mean(dim=(2, 3))
        logits: Tensor = self.output(x)[:, 0] + (x * self.of_class(labels)).sum(dim=1)
        return logits


class FedGanMethod(FedAvgMethod[FedGan]):
    """FedAvg of a GAN, then of a classifier that also learns from the GAN's images."""

    def first_weights(self, seed: int) -> Weights:
        with seeded(derive_seed(seed, "gan")):
            generator_net, discriminator = self._networks()
        return {
            **super().first_weights(seed),
            **as_part("gan/generator", weights_of(generator_net)),
            **as_part("gan/discriminator", weights_of(discriminator)),
        }

    def train(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> TrainedModel:
        if work.round_number > self.settings.gan_rounds:
            return super().train(work, progress, device)
        return self._train_gan(work, progress, device)

    def _train_gan(self, work: LocalWork, progress: Progress, device: str) -> TrainedModel:
        settings, shard = self.settings, work.shard
        generator_net, discriminator = self._networks_with(work.weights)
        generator_net.to(device)
        discriminator.to(device)
        # FedGAN leaves the optimiser open. Adam's state starts at zero each round, as SGD's does.
        rate = settings.gan_learning_rate
        generator_step = Adam(list(generator_net.parameters()), rate, _BETAS)
        discriminator_step = Adam(list(discriminator.parameters()), rate, _BETAS)

        images = torch.from_numpy(normalise(shard.pixels, work.recipe.normalisation)).to(device)
        labels = torch.from_numpy(shard.labels).to(device)
        random = generator(work.seed, "noise")

        def step(batch: Indices) -> float:
            rows = torch.from_numpy(batch).to(device)
            real, y = images[rows], labels[rows]
            with torch.no_grad():
                fake = generator_net(_noise(len(batch), settings, random).to(device), y)
            judged_real, judged_fake = discriminator(real, y), discriminator(fake, y)
            discriminator_loss = F.softplus(-judged_real).mean() + F.softplus(judged_fake).mean()
            discriminator_step.step(discriminator_loss)
            # The non-saturating loss: the generator wants its images to pass as real. It steps
            # after the discriminator. Algorithm 1 takes both steps at once.
            fake = generator_net(_noise(len(batch), settings, random).to(device), y)
            generator_step.step(F.softplus(-discriminator(fake, y)).mean())
            return discriminator_loss.item()

        loss = run_epochs(
            step,
            len(shard),
            settings.gan_batch_size,
            settings.gan_epochs,
            generator(work.seed, "real"),
            progress,
            "fedgan.gan_learning_rate",
        )
        weights = {
            **as_part("gan/generator", weights_of(generator_net)),
            **as_part("gan/discriminator", weights_of(discriminator)),
        }
        return TrainedModel(weights, len(shard), loss)

    @torch.no_grad()
    def synthesise(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> Synthesis:
        """Make images of the device's classes, in its proportions, with the averaged generator."""
        settings, shard = self.settings, work.shard
        network, _ = self._networks_with(work.weights)
        network.to(device).eval()
        subset = choose(len(shard), settings.samples_per_device, generator(work.seed, "subset"))
        real = shard.take(subset)
        noise = _noise(len(real), settings, generator(work.seed, "noise"))
        labels = torch.from_numpy(real.labels)
        chunks = [
            network(noise[i : i + _CHUNK].to(device), labels[i : i + _CHUNK].to(device))
            for i in range(0, len(real), _CHUNK)
        ]
        images = torch.cat(chunks).numpy(force=True)
        by, pixel_type = work.recipe.normalisation, work.recipe.pool.pixel_type
        pixels = to_pixels(np.ascontiguousarray(images), by, pixel_type)
        # A GAN's image comes from no real one. Each is paired with one of the same class.
        made_images = LabelledImages(pixels, real.labels)
        return Synthesis(measure_leakage(made_images, real.pixels, shard.pixels))

    def _networks(self) -> tuple[Generator, Discriminator]:
        spec = self.recipe.model
        generator_net = Generator(spec, self.recipe.normalisation, self.settings)
        return generator_net, Discriminator(spec, self.settings)

    def _networks_with(self, weights: Weights) -> tuple[Generator, Discriminator]:
        with seeded(0):  # leaves other runs' random state alone
            generator_net, discriminator = self._networks()
        load_weights(generator_net, part_of(weights, "gan/generator"))
        load_weights(discriminator, part_of(weights, "gan/discriminator"))
        return generator_net, discriminator


def _noise(count: int, settings: FedGan, random: np.random.Generator) -> Tensor:
    noise = random.standard_normal((count, settings.noise_size), dtype=np.float32)
    return torch.from_numpy(noise)
