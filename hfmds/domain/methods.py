"""What can be set about each method: plain values, without torch. The modules beside this one act.

Defaults are those of the method's own paper for CIFAR-10 where it names one; the comment says so.
docs/methods.md has the table of methods, files, equations and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.pool_policy import NEAR_NOISE, NEAR_PHOTOGRAPHS
from hfmds.domain.validation import require, require_above_zero, require_at_least, require_range

TaskKind = Literal["train", "synthesise", "evaluate"]
"""What a device is asked to do."""

_BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # torch's names


@dataclass(frozen=True, slots=True)
class Method:
    """How the devices of a run learn from each other. What it says here is what FedAvg does."""

    name: ClassVar[str]  # in recipes, reports and metrics
    samples_per_device = 0  # most images a device shares at a refresh; 0: there is no pool
    with_shares = False  # whether those images are mixtures, with class shares
    uses_alpha = False  # whether devices train on those images as on their own, by training.alpha
    server_learns = False  # whether the server trains a network, besides taking the mean
    near_threshold = NEAR_PHOTOGRAPHS  # at which two of them count as near duplicates, by default

    def refreshes(self, round_number: int) -> bool:
        """Whether the pool is made anew at the start of this round."""
        return False

    def trains(self, weight: str, round_number: int) -> bool:
        """Whether devices change this weight in this round, and so send it back."""
        return True

    def measures(self, weight: str) -> bool:
        """Whether this weight is measured and not learned, as BatchNorm's statistics are.

        Such values are sent as they are, and the server neither clips them nor steps with them.
        """
        return weight.rpartition(".")[2] in _BATCH_STATISTICS

    def memory_of(self, kind: TaskKind) -> TaskKind:
        """What a task of this kind starts with: what the last one of which kind has left."""
        return kind

    def check_update(self, weights: Mapping[str, NDArray[np.float32]], whose: str) -> None:
        """Refuse an update that has the right tensors but values the method cannot use."""

    @property
    def preparation_rounds(self) -> int:
        """How many rounds pass before the classifier is trained; they count as rounds."""
        return 0


@dataclass(frozen=True, slots=True)
class FedAvg(Method):
    """Federated averaging alone (McMahan et al., 2017)."""

    name = "fedavg"


@dataclass(frozen=True, slots=True)
class FedProx(Method):
    """FedProx (Li et al., 2020): local weights are held near the global ones."""

    name = "fedprox"
    mu: float = 0.01  # factor of the proximal term; its paper tries 0.001, 0.01, 0.1 and 1

    def __post_init__(self) -> None:
        require_at_least(0, fedprox__mu=self.mu)


@dataclass(frozen=True, slots=True)
class Moon(Method):
    """MOON (Li, He, Song, 2021): features near the global model's, off the last local one's."""

    name = "moon"
    mu: float = 5.0  # factor of the contrastive term; its paper's for CIFAR-10
    temperature: float = 0.5  # tau

    def __post_init__(self) -> None:
        require_at_least(0, moon__mu=self.mu)
        require_above_zero(moon__temperature=self.temperature)


LABEL_COUNTS = "fedgen/label_counts"
"""The weight that holds how many images of each class a device has; in w^t, the mean of them."""


@dataclass(frozen=True, slots=True)
class FedGen(Method):
    """FedGen (Zhu, Hong, Zhou, 2021): the server learns a generator of features for every class.

    Defaults are those of the authors' code, as for MNIST and CelebA, since it has none for CIFAR;
    the generator's sizes as for CIFAR-10. But both weights are 1, the paper's factor. The code has
    10, for SGD without momentum; with our steps, ten times as large, that collapsed.
    """

    name = "fedgen"
    server_learns = True
    label_weight: float = 1.0  # of the loss on generated features
    latent_weight: float = 1.0  # of the distance to the prediction on generated features
    decay: float = 0.98  # of both weights, per round
    noise_size: int = 64
    hidden_size: int = 512
    generator_steps: int = 50  # per round, on the server
    generator_batch_size: int = 128  # configured in the code, which then passes 32
    generator_learning_rate: float = 3e-4  # Adam's
    diversity_weight: float = 1.0

    def __post_init__(self) -> None:
        require_at_least(
            0,
            fedgen__label_weight=self.label_weight,
            fedgen__latent_weight=self.latent_weight,
            fedgen__diversity_weight=self.diversity_weight,
        )
        require_range("fedgen.decay", self.decay, 0 < self.decay <= 1, "in (0, 1]")
        # The server does this work for whoever creates a run: it must not be without end. The
        # diversity term compares generated features with each other, so there are two or more.
        for name, least, most in (
            ("generator_steps", 0, 10_000),
            ("generator_batch_size", 2, 4096),
            ("noise_size", 1, 65_536),
            ("hidden_size", 1, 65_536),
        ):
            _require_between(least, most, f"fedgen.{name}", getattr(self, name))
        require_above_zero(fedgen__generator_learning_rate=self.generator_learning_rate)

    def trains(self, weight: str, round_number: int) -> bool:
        return not weight.startswith("generator/")  # the server's work

    def measures(self, weight: str) -> bool:
        # Not super(): slots make the class anew, and its zero-argument form would not find it.
        return weight == LABEL_COUNTS or Method.measures(self, weight)

    def check_update(self, weights: Mapping[str, NDArray[np.float32]], whose: str) -> None:
        counts = weights[LABEL_COUNTS]
        require(
            bool((counts >= 0).all()) and float(counts.sum()) >= 1,
            f"{whose}: its class counts must not be negative, and at least one image in all",
        )


@dataclass(frozen=True, slots=True)
class FedMix(Method):
    """FedMix (Yoon et al., 2021): mixup with averaged images of others, by a Taylor expansion."""

    name = "fedmix"
    with_shares = True
    mixing: float = 0.05  # lambda, the share of the others' images; its paper's for CIFAR-10
    images_per_average: int = 2  # M_k; two as in the HFMDS-FL paper
    samples_per_device: int = 100  # averages at most; no image is in two of them

    def __post_init__(self) -> None:
        require_range("fedmix.mixing", self.mixing, 0 <= self.mixing < 1, "in [0, 1)")
        # The average of one image is that image, which is not to leave its device.
        require_at_least(2, fedmix__images_per_average=self.images_per_average)
        require_at_least(1, fedmix__samples_per_device=self.samples_per_device)

    def refreshes(self, round_number: int) -> bool:
        return round_number == 1  # averages do not depend on the model: once, at the beginning


@dataclass(frozen=True, slots=True)
class FedGan(Method):
    """FedGAN (Rasouli, Sun, Rajagopal, 2020): a GAN learned by averaging, then used to augment.

    Its first `gan_rounds` rounds train generator and discriminator only; then the pool is made
    once, and the classifier is trained on it for the rounds that are left.
    """

    name = "fedgan"
    uses_alpha = True
    gan_rounds: int = 20
    gan_epochs: int = 1  # passes over a device's data in each of them
    gan_batch_size: int = 10
    gan_learning_rate: float = 2e-4  # Adam's, of both networks
    noise_size: int = 64
    width: int = 32  # channels of the layers nearest the image
    samples_per_device: int = 100

    def __post_init__(self) -> None:
        require_at_least(
            1,
            fedgan__gan_rounds=self.gan_rounds,
            fedgan__gan_epochs=self.gan_epochs,
            fedgan__gan_batch_size=self.gan_batch_size,
            fedgan__samples_per_device=self.samples_per_device,
        )
        _require_between(1, 4096, "fedgan.noise_size", self.noise_size)
        _require_between(1, 4096, "fedgan.width", self.width)
        require_above_zero(fedgan__gan_learning_rate=self.gan_learning_rate)

    def refreshes(self, round_number: int) -> bool:
        return round_number == self.gan_rounds + 1

    def trains(self, weight: str, round_number: int) -> bool:
        return weight.startswith("gan/") == (round_number <= self.gan_rounds)

    @property
    def preparation_rounds(self) -> int:
        return self.gan_rounds


@dataclass(frozen=True, slots=True)
class Hfmds(Method):
    """HFMDS-FL: devices synthesise images that match hard, class-relevant features.

    mu = 0 is FMDS-FL, mu < 0 easy feature matching; matching_weight = 0 leaves L_C only; steps = 0
    is the unoptimised-noise control. Symbols and defaults: the paper, section 4 and Table 1.
    """

    name = "hfmds"
    uses_alpha = True
    near_threshold = NEAR_NOISE
    every_rounds: int = 20  # T_d
    first_round: int = 20  # the paper's t mod T_d = 0 is first_round = every_rounds
    samples_per_device: int = 100  # B_g
    steps: int = 500  # T_g
    learning_rate: float = 0.02  # Adam's
    mu: float = 0.5  # how far features are pushed from their prototype
    prototype_momentum: float = 0.5  # lambda
    matching_weight: float = 1.0  # factor of L_HFM
    # Prototypes of the features that the local model gives while it trains, as Algorithm 1 has it,
    # and not of those of the global model at the refresh; docs/paper.md says why that is not usual.
    local_prototypes: bool = False

    def __post_init__(self) -> None:
        require_at_least(
            1,
            hfmds__every_rounds=self.every_rounds,
            hfmds__first_round=self.first_round,
            hfmds__samples_per_device=self.samples_per_device,
        )
        require_at_least(0, hfmds__steps=self.steps, hfmds__matching_weight=self.matching_weight)
        require_above_zero(hfmds__learning_rate=self.learning_rate)
        require_range("hfmds.mu", self.mu, True, "a number")
        momentum = self.prototype_momentum
        require_range("hfmds.prototype_momentum", momentum, 0 <= momentum <= 1, "in [0, 1]")

    def memory_of(self, kind: TaskKind) -> TaskKind:
        return "train" if self.local_prototypes and kind == "synthesise" else kind

    def refreshes(self, round_number: int) -> bool:
        since_first = round_number - self.first_round
        return since_first >= 0 and since_first % self.every_rounds == 0


def _require_between(least: int, most: int, name: str, value: int) -> None:
    require_range(name, value, least <= value <= most, f"at least {least} and at most {most}")


METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Hfmds, FedAvg, FedProx, Moon, FedGen, FedMix, FedGan)
}
"""Every method by its name."""
