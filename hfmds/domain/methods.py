"""The settings of each method. `hfmds.algorithm.methods` implements the methods.

Defaults are those that the method's paper names for CIFAR-10, if it names any.
docs/methods.md has the table of methods, files, equations and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from hfmds.domain.pool_policy import NEAR_NOISE, NEAR_PHOTOGRAPHS
from hfmds.domain.validation import STRICT, Count, SettingsTable, require

TaskKind = Literal["train", "synthesise", "evaluate"]
"""The kind of a task."""

_BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # torch's names


@dataclass(frozen=True, config=STRICT)
class Method(SettingsTable):
    """How the devices of a run learn from each other. The defaults here are those of FedAvg."""

    name: ClassVar[str]  # in recipes, reports and metrics
    samples_per_device = 0  # most shared images of a device at a refresh; 0: no pool
    with_shares = False  # whether those images are mixtures, with class shares
    uses_alpha = False  # whether training.alpha weighs the shared images
    server_learns = False  # whether the server trains a network, besides taking the mean
    needs_torch = False  # whether devices need torch, because no plan can train this method
    near_threshold = NEAR_PHOTOGRAPHS  # default distance of near duplicates

    def refreshes(self, round_number: int) -> bool:
        """Whether the pool is refreshed at the start of this round."""
        return False

    def trains(self, weight: str, round_number: int) -> bool:
        """Whether devices train this weight in this round and send it back."""
        return True

    def measures(self, weight: str) -> bool:
        """Whether this weight is measured and not learned, as BatchNorm's statistics are.

        Such values are sent as they are, and the server neither clips them nor steps with them.
        """
        return weight.rpartition(".")[2] in _BATCH_STATISTICS

    def memory_of(self, kind: TaskKind) -> TaskKind:
        """Return the kind of task whose memory a task of this kind starts with."""
        return kind

    def check_update(self, weights: Mapping[str, NDArray[np.float32]], whose: str) -> None:
        """Refuse an update whose values the method cannot use."""

    @property
    def preparation_rounds(self) -> int:
        """The number of rounds before the classifier is trained; they count as rounds."""
        return 0


@dataclass(frozen=True, config=STRICT)
class FedAvg(Method):
    """Federated averaging alone (McMahan et al., 2017)."""

    name = table = "fedavg"


@dataclass(frozen=True, config=STRICT)
class FedProx(Method):
    """FedProx (Li et al., 2020): the loss keeps local weights near the global ones."""

    name = table = "fedprox"
    mu: float = Field(
        default=0.01,
        ge=0,
        description="Factor of the proximal term; its paper tries 0.001, 0.01, 0.1 and 1.",
    )


@dataclass(frozen=True, config=STRICT)
class Moon(Method):
    """MOON (Li, He, Song, 2021): features near the global model's, off the last local one's."""

    name = table = "moon"
    needs_torch = True
    mu: float = Field(
        default=5.0,
        ge=0,
        description="Factor of the contrastive term; its paper's value for CIFAR-10.",
    )
    temperature: float = Field(
        default=0.5, gt=0, description="Temperature of the contrastive term (tau)."
    )


LABEL_COUNTS = "fedgen/label_counts"
"""The weight with a device's number of images of each class; in w^t, their mean."""


@dataclass(frozen=True, config=STRICT)
class FedGen(Method):
    """FedGen (Zhu, Hong, Zhou, 2021): the server learns a generator of features for every class.

    Defaults are those of the authors' code, as for MNIST and CelebA, since it has none for CIFAR;
    the generator's sizes as for CIFAR-10. But both weights are 1, the paper's factor. The code has
    10, for SGD without momentum; with our steps, ten times as large, that collapsed.
    """

    name = table = "fedgen"
    needs_torch = True
    server_learns = True
    label_weight: float = Field(
        default=1.0, ge=0, description="Weight of the loss on generated features."
    )
    latent_weight: float = Field(
        default=1.0,
        ge=0,
        description="Weight of the distance to the prediction on generated features.",
    )
    decay: float = Field(
        default=0.98, gt=0, le=1, description="Factor of both weights in each round."
    )
    noise_size: int = Field(
        default=64, ge=1, le=65_536, description="Length of the generator's noise."
    )
    hidden_size: int = Field(
        default=512, ge=1, le=65_536, description="Width of the generator's hidden layer."
    )
    generator_steps: int = Field(
        default=50,
        ge=0,
        le=10_000,
        description="Training steps of the generator in a round, on the server.",
    )
    generator_batch_size: int = Field(
        default=128,
        ge=2,
        le=4096,
        description="Generated features in a step; the diversity term compares at least two.",
    )
    generator_learning_rate: float = Field(
        default=3e-4, gt=0, description="Learning rate of the generator (Adam)."
    )
    diversity_weight: float = Field(
        default=1.0, ge=0, description="Weight of the generator's diversity term."
    )

    def trains(self, weight: str, round_number: int) -> bool:
        return not weight.startswith("generator/")  # the server trains it

    def measures(self, weight: str) -> bool:
        return weight == LABEL_COUNTS or super().measures(weight)

    def check_update(self, weights: Mapping[str, NDArray[np.float32]], whose: str) -> None:
        counts = weights[LABEL_COUNTS]
        require(
            bool((counts >= 0).all()) and float(counts.sum()) >= 1,
            f"{whose}: its class counts must not be negative, and at least one image in all",
        )


@dataclass(frozen=True, config=STRICT)
class FedMix(Method):
    """FedMix (Yoon et al., 2021): mixup with averaged images of others, by a Taylor expansion."""

    name = table = "fedmix"
    needs_torch = True
    with_shares = True
    mixing: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Share of other devices' images in a mixture (lambda), as in its paper.",
    )
    images_per_average: Count = Field(
        default=2,
        ge=2,
        description="Images in an average (M_k); one image alone must not leave its device.",
    )
    samples_per_device: Count = Field(
        default=100, ge=1, description="Most averages from a device; no image is in two of them."
    )

    def refreshes(self, round_number: int) -> bool:
        return round_number == 1  # averages do not depend on the model


@dataclass(frozen=True, config=STRICT)
class FedGan(Method):
    """FedGAN (Rasouli, Sun, Rajagopal, 2020): a GAN learned by averaging, then used to augment.

    Its first `gan_rounds` rounds train generator and discriminator only; then the pool is made
    once, and the classifier is trained on it for the rounds that are left.
    """

    name = table = "fedgan"
    needs_torch = True
    uses_alpha = True
    gan_rounds: Count = Field(
        default=20, ge=1, description="Rounds that train generator and discriminator only."
    )
    gan_epochs: Count = Field(
        default=1, ge=1, description="Passes over a device's data in each of these rounds."
    )
    gan_batch_size: Count = Field(
        default=10, ge=1, description="Samples in a step of these rounds."
    )
    gan_learning_rate: float = Field(
        default=2e-4, gt=0, description="Learning rate of both networks (Adam)."
    )
    noise_size: int = Field(
        default=64, ge=1, le=4096, description="Length of the generator's noise."
    )
    width: int = Field(
        default=32, ge=1, le=4096, description="Channels of the layers nearest to the image."
    )
    samples_per_device: Count = Field(
        default=100, ge=1, description="Images that each device shares."
    )

    def refreshes(self, round_number: int) -> bool:
        return round_number == self.gan_rounds + 1

    def trains(self, weight: str, round_number: int) -> bool:
        return weight.startswith("gan/") == (round_number <= self.gan_rounds)

    @property
    def preparation_rounds(self) -> int:
        return self.gan_rounds


@dataclass(frozen=True, config=STRICT)
class Hfmds(Method):
    """HFMDS-FL: devices synthesise images that match hard, class-relevant features.

    mu = 0 is FMDS-FL, mu < 0 easy feature matching; matching_weight = 0 leaves L_C only; steps = 0
    is the unoptimised-noise control. Symbols and defaults: the paper, section 4 and Table 1.
    """

    name = table = "hfmds"
    uses_alpha = True
    near_threshold = NEAR_NOISE
    every_rounds: Count = Field(
        default=20, ge=1, description="Rounds between refreshes of the pool (T_d)."
    )
    first_round: Count = Field(
        default=20, ge=1, description="Round of the first refresh; in the paper, every_rounds."
    )
    samples_per_device: Count = Field(
        default=100, ge=1, description="Images from each device at a refresh (B_g)."
    )
    steps: Count = Field(default=500, ge=0, description="Optimisation steps at a refresh (T_g).")
    learning_rate: float = Field(
        default=0.02, gt=0, description="Learning rate of synthesis (Adam)."
    )
    mu: float = Field(
        default=0.5,
        description="How far features are pushed from their prototype; 0: plain feature matching.",
    )
    prototype_momentum: float = Field(
        default=0.5, ge=0, le=1, description="Momentum of prototypes (lambda)."
    )
    matching_weight: float = Field(
        default=1.0, ge=0, description="Weight of feature matching (L_HFM); 0: none."
    )
    local_prototypes: bool = Field(
        default=False,
        description="Whether prototypes come from the local model in training (Algorithm 1).",
    )

    def memory_of(self, kind: TaskKind) -> TaskKind:
        return "train" if self.local_prototypes and kind == "synthesise" else kind

    def refreshes(self, round_number: int) -> bool:
        since_first = round_number - self.first_round
        return since_first >= 0 and since_first % self.every_rounds == 0


METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Hfmds, FedAvg, FedProx, Moon, FedGen, FedMix, FedGan)
}
"""Every method by its name."""
