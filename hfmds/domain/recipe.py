"""What a run learns: the settings that determine its result.

Every package imports this module, so it imports neither torch nor gRPC nor protobuf. The paper's
symbols (sections 3-4, Table 1) stand in the descriptions; the defaults are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hfmds.domain.methods import METHODS, FedAvg, Method
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.validation import STRICT, Count, LargeCount, SettingsTable, require

PAPER_CNN, RESNET_GN = "paper-cnn", "resnet-gn"
OUR_ARCHITECTURES = (PAPER_CNN, RESNET_GN)
"""The networks of HFMDS-FL itself. They change only when our own code changes."""


@dataclass(frozen=True, config=STRICT)
class ModelSpec(SettingsTable):
    """The network and its images: enough to build the network anywhere."""

    table = "model"
    architecture: str = Field(default=PAPER_CNN, description="Name of the network.")
    channels: Count = Field(default=3, ge=1, description="Channels of the images.")
    height: Count = Field(default=32, ge=1, description="Height of the images in pixels.")
    width: Count = Field(default=32, ge=1, description="Width of the images in pixels.")
    classes: Count = Field(default=10, ge=1, description="Number of classes.")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (self.channels, self.height, self.width)


@dataclass(frozen=True, config=STRICT)
class Normalisation(SettingsTable):
    """Mean and standard deviation of each channel, of pixels in [0, 1]: the model's input space."""

    table = "normalisation"
    mean: tuple[float, ...] = Field(description="Mean of pixels in [0, 1], one for each channel.")
    std: tuple[float, ...] = Field(
        description="Standard deviation of pixels in [0, 1], one for each channel."
    )

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.std),
            f"normalisation has {len(self.mean)} means but {len(self.std)} deviations",
        )
        require(
            all(deviation > 0 for deviation in self.std),
            f"normalisation.std is {self.std}; it must be positive numbers",
        )


@dataclass(frozen=True, config=STRICT)
class TrainingRecipe(SettingsTable):
    """The local work of one device in one round (ClientUpdate in Algorithm 1)."""

    table = "training"
    batch_size: Count = Field(
        default=10, ge=1, description="Real samples in a step, and as many synthetic ones (B)."
    )
    local_epochs: Count = Field(
        default=1, ge=1, description="Passes over a device's data in a round."
    )
    learning_rate: float = Field(default=0.005, gt=0, description="Learning rate of SGD (eta).")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of SGD.")
    weight_decay: float = Field(default=5e-4, ge=0, description="Weight decay of SGD.")
    alpha: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Weight of the loss on real samples once there is a pool. Used by "
        f"{' and '.join(name for name in METHODS if METHODS[name].uses_alpha)}.",
    )
    later_from_round: Count = Field(
        default=0,
        ge=0,
        description="Round from which later_learning_rate applies; 0: the rate never changes.",
    )
    later_learning_rate: float = Field(
        default=0.0, ge=0, description="Learning rate from round later_from_round on."
    )

    def __post_init__(self) -> None:
        require(
            (self.later_from_round > 0) == (self.later_learning_rate > 0),
            f"training.later_from_round is {self.later_from_round}, and "
            f"training.later_learning_rate {self.later_learning_rate:g}; set both, or neither",
        )

    def in_round(self, round_number: int) -> TrainingRecipe:
        """Return the recipe of one round, with that round's learning rate as the only one."""
        if not self.later_from_round:
            return self
        falls = self.later_from_round <= round_number
        rate = self.later_learning_rate if falls else self.learning_rate
        return replace(self, learning_rate=rate, later_from_round=0, later_learning_rate=0.0)


@dataclass(frozen=True, config=STRICT)
class Sampling(SettingsTable):
    """How a cohort is drawn from the available devices (`hfmds.algorithm.sampling`)."""

    table = "sampling"
    strategy: Literal["uniform", "by_samples", "power_of_choice"] = Field(
        default="uniform", description="How devices are drawn for a round: docs/rounds.md."
    )
    candidates: Count = Field(
        default=0,
        ge=0,
        description="Devices that power_of_choice draws before it chooses those with most loss.",
    )

    def __post_init__(self) -> None:
        if self.strategy == "power_of_choice":
            require(
                self.candidates >= 1,
                f"sampling.candidates is {self.candidates}; it must be at least 1",
            )
        else:
            require(
                self.candidates == 0,
                f"sampling.candidates is {self.candidates}, but the strategy is {self.strategy}; "
                "leave it out, or choose power_of_choice",
            )


RULES: Mapping[str, tuple[str, ...]] = {
    "mean": ("weighting",),
    "median": (),
    "trimmed_mean": ("trimmed_fraction",),
    "multi_krum": ("hostile_devices", "kept_devices"),
}
"""The settings of each aggregation rule. A setting of another rule has no effect."""
SERVER_OPTIMISERS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "fedavgm": ("server_learning_rate", "momentum"),
    "fedadam": ("server_learning_rate", "beta1", "beta2", "tau"),
}
"""The settings of each server optimiser."""
_OWN_LEARNING_RATE = {"fedavgm": 1.0, "fedadam": 0.01}


@dataclass(frozen=True, config=STRICT)
class AggregationRecipe(SettingsTable):
    """How the server makes w^{t+1} from the updates; docs/aggregation.md has the formulas."""

    table = "aggregation"
    weighting: Literal["uniform", "samples"] = Field(
        default="uniform", description="How much each device counts in the rule mean."
    )
    rule: Literal["mean", "median", "trimmed_mean", "multi_krum"] = Field(
        default="mean", description="How the server combines the updates."
    )
    trimmed_fraction: float = Field(
        default=0.1, ge=1e-6, lt=0.5, description="Share of devices that is cut off at each end."
    )
    hostile_devices: Count = Field(
        default=1, ge=0, description="Most hostile devices that multi_krum expects (f)."
    )
    kept_devices: Count = Field(
        default=0, ge=0, description="Updates that multi_krum keeps (m); 0: all but f."
    )
    clip_norm: float = Field(
        default=0.0, ge=0, description="Largest norm of one device's change; 0: no limit."
    )
    optimiser: Literal["none", "fedavgm", "fedadam"] = Field(
        default="none", description="Optimiser that the server steps with."
    )
    server_learning_rate: float = Field(
        default=0.0, ge=0, description="Learning rate of the server; 0: the optimiser's default."
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of fedavgm.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="Decay of fedadam's mean.")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="Decay of fedadam's variance.")
    tau: float = Field(default=1e-3, gt=0, description="Adaptivity of fedadam.")

    def __post_init__(self) -> None:
        self._refuse_settings_without_effect("rule", RULES)
        self._refuse_settings_without_effect("optimiser", SERVER_OPTIMISERS)

    def _refuse_settings_without_effect(
        self, choice: str, settings: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Refuse a setting of an alternative that was not chosen: it would do nothing."""
        chosen = getattr(self, choice)
        for name in dict.fromkeys(name for names in settings.values() for name in names):
            value = getattr(self, name)
            owners = " or ".join(owner for owner in settings if name in settings[owner])
            require(
                name in settings[chosen] or value == self.__pydantic_fields__[name].default,
                f"aggregation.{name} is {value}, but aggregation.{choice} is {chosen}; "
                f"leave it out, or choose {owners}",
            )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the server optimiser, or the optimiser's own default."""
        return self.server_learning_rate or _OWN_LEARNING_RATE[self.optimiser]

    @property
    def least_devices(self) -> int:
        """The number of updates below which the rule cannot keep its promise."""
        match self.rule:
            case "trimmed_mean":  # one at each end
                return math.ceil(1 / self.trimmed_fraction)
            case "multi_krum":  # n >= 2f + 3, as in Krum's proof
                return max(2 * self.hostile_devices + 3, self.kept_devices + self.hostile_devices)
        return 1


def default_pool(method: Method) -> PoolPolicy:
    """Return the default policy of a method's pools: it suits the images the method makes."""
    return PoolPolicy(near_threshold=method.near_threshold)


@dataclass(frozen=True, config=STRICT)
class Recipe(SettingsTable):
    """Everything that determines what a run learns."""

    model: ModelSpec
    normalisation: Normalisation
    rounds: Count = Field(ge=1, description="Rounds to train (T).")
    seed: LargeCount = Field(
        default=0, ge=0, description="Seed of every random decision in the run."
    )
    training: TrainingRecipe = Field(default_factory=TrainingRecipe)
    method: Method = Field(default_factory=FedAvg)
    cohort_size: Count = Field(
        default=0, ge=0, description="Devices in a round; 0: all available devices."
    )
    class_names: tuple[str, ...] = Field(
        default=(), description="Names of the classes in order; none: their numbers."
    )
    sampling: Sampling = Field(default_factory=Sampling)
    aggregation: AggregationRecipe = Field(default_factory=AggregationRecipe)
    compression: Literal["none", "fp16", "int8"] = Field(
        default="none", description="How devices compress the weights they send."
    )
    pool: PoolPolicy = Field(default_factory=PoolPolicy)

    def __post_init__(self) -> None:
        if self.sampling.strategy != "uniform":
            require(
                self.cohort_size > 0,
                f"sampling.strategy is {self.sampling.strategy}, but without a cohort_size every "
                "device trains; set cohort_size",
            )
        if self.sampling.candidates:
            require(
                self.sampling.candidates >= self.cohort_size,
                f"sampling.candidates is {self.sampling.candidates}; it must be at least "
                f"{self.cohort_size}, the cohort_size",
            )
        require(
            len(self.normalisation.mean) == self.model.channels,
            f"normalisation has {len(self.normalisation.mean)} channels, "
            f"the model {self.model.channels}",
        )
        require(
            len(self.class_names) in (0, self.model.classes),
            f"{len(self.class_names)} class names for {self.model.classes} classes",
        )
        require(
            self.rounds > self.method.preparation_rounds,
            f"rounds is {self.rounds}, but {self.method.name} prepares for "
            f"{self.method.preparation_rounds} before it trains the classifier; ask for more",
        )
        require(
            self.method.samples_per_device > 0 or self.pool == PoolPolicy(),
            f"settings of pool are given, but {self.method.name} has no pool; leave them out, or "
            "choose a method that shares images",
        )
        least = self.aggregation.least_devices
        require(
            self.cohort_size == 0 or self.cohort_size >= least,
            f"cohort_size is {self.cohort_size}, but aggregation.rule {self.aggregation.rule} with "
            f"these settings needs at least {least} devices",
        )

    def in_round(self, round_number: int) -> Recipe:
        """Return the recipe of one round, with that round's learning rate as the only one."""
        training = self.training.in_round(round_number)
        return self if training is self.training else replace(self, training=training)
