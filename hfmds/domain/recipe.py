"""What a run is to learn, and how: everything that determines its result, as plain values.

Imported by every package, so it must not import torch, gRPC or protobuf. Symbols of the paper
(sections 3-4, Table 1) stand next to the field they name; defaults are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from hfmds.domain.methods import FedAvg, Method
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.validation import (
    require,
    require_above_zero,
    require_at_least,
    require_one_of,
    require_range,
)

PAPER_CNN, RESNET_GN = "paper-cnn", "resnet-gn"
OUR_ARCHITECTURES = (PAPER_CNN, RESNET_GN)
"""The networks of HFMDS-FL itself, which change with our own code only."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which network, for which images: enough to build it anywhere."""

    architecture: str = PAPER_CNN
    channels: int = 3
    height: int = 32
    width: int = 32
    classes: int = 10

    def __post_init__(self) -> None:
        require_at_least(
            1,
            model__channels=self.channels,
            model__height=self.height,
            model__width=self.width,
            model__classes=self.classes,
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Per-channel mean and standard deviation of pixels in [0, 1]; the space the model sees."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.std),
            f"normalisation has {len(self.mean)} means but {len(self.std)} deviations",
        )
        require(
            all(math.isfinite(m) for m in self.mean),
            f"normalisation.mean {self.mean} must be numbers",
        )
        require(
            all(s > 0 and math.isfinite(s) for s in self.std),
            f"normalisation.std {self.std} must be positive numbers",
        )


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """One device's local work in one round (ClientUpdate in Algorithm 1)."""

    batch_size: int = 10  # B, of real and of synthetic samples each
    local_epochs: int = 1
    learning_rate: float = 0.005  # eta
    momentum: float = 0.9
    weight_decay: float = 5e-4
    alpha: float = 0.1  # weight of the real loss once there is a pool; 1 before
    later_from_round: int = 0  # the round from which eta is another one; 0: it stays
    later_learning_rate: float = 0.0  # that one

    def __post_init__(self) -> None:
        require_at_least(
            1, training__batch_size=self.batch_size, training__local_epochs=self.local_epochs
        )
        require_above_zero(training__learning_rate=self.learning_rate)
        require_range("training.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        require_at_least(0, training__weight_decay=self.weight_decay)
        require_range("training.alpha", self.alpha, 0 <= self.alpha <= 1, "in [0, 1]")
        require_at_least(
            0,
            training__later_from_round=self.later_from_round,
            training__later_learning_rate=self.later_learning_rate,
        )
        require(
            (self.later_from_round > 0) == (self.later_learning_rate > 0),
            f"training.later_from_round is {self.later_from_round}, and "
            f"training.later_learning_rate {self.later_learning_rate:g}; set both, or neither",
        )

    def in_round(self, round_number: int) -> TrainingRecipe:
        """The same with the learning rate of this round, and with no other later."""
        if not self.later_from_round:
            return self
        falls = self.later_from_round <= round_number
        rate = self.later_learning_rate if falls else self.learning_rate
        return replace(self, learning_rate=rate, later_from_round=0, later_learning_rate=0.0)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a cohort is drawn from the devices that are available (`hfmds.algorithm.sampling`)."""

    strategy: str = "uniform"  # or by_samples, power_of_choice
    candidates: int = 0  # d of power_of_choice

    def __post_init__(self) -> None:
        strategies = ("uniform", "by_samples", "power_of_choice")
        require(
            self.strategy in strategies,
            f"sampling.strategy is {self.strategy!r}; it must be one of {', '.join(strategies)}",
        )
        if self.strategy == "power_of_choice":
            require_at_least(1, sampling__candidates=self.candidates)
        else:
            require(
                self.candidates == 0,
                f"sampling.candidates is {self.candidates}, but the strategy is {self.strategy}; "
                "leave it out, or choose power_of_choice",
            )


WEIGHTINGS = ("uniform", "samples")
COMPRESSIONS = ("none", "fp16", "int8")
RULES: Mapping[str, tuple[str, ...]] = {
    "mean": ("weighting",),
    "median": (),
    "trimmed_mean": ("trimmed_fraction",),
    "multi_krum": ("hostile_devices", "kept_devices"),
}
"""The settings that each rule of aggregation has; another rule's would do nothing."""
SERVER_OPTIMISERS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "fedavgm": ("server_learning_rate", "momentum"),
    "fedadam": ("server_learning_rate", "beta1", "beta2", "tau"),
}
"""The settings that each server optimiser has."""
_OWN_LEARNING_RATE = {"fedavgm": 1.0, "fedadam": 0.01}


@dataclass(frozen=True, slots=True)
class AggregationRecipe:
    """How the server makes w^{t+1} of the updates; docs/aggregation.md has the formulas."""

    weighting: str = "uniform"  # or "samples"; uniform as in the paper
    rule: str = "mean"
    trimmed_fraction: float = 0.1  # of the devices, at each end
    hostile_devices: int = 1  # f, assumed at most
    kept_devices: int = 0  # m; 0: all but f
    clip_norm: float = 0.0  # the longest change of a device that counts in full; 0: any
    optimiser: str = "none"
    server_learning_rate: float = 0.0  # 0: the optimiser's own
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3  # FedAdam's adaptivity

    def __post_init__(self) -> None:
        require_one_of("aggregation.weighting", self.weighting, WEIGHTINGS)
        require_one_of("aggregation.rule", self.rule, RULES)
        require_one_of("aggregation.optimiser", self.optimiser, SERVER_OPTIMISERS)
        fraction = self.trimmed_fraction
        require_range(
            "aggregation.trimmed_fraction", fraction, 1e-6 <= fraction < 0.5, "in [1e-6, 0.5)"
        )
        require_at_least(
            0,
            aggregation__hostile_devices=self.hostile_devices,
            aggregation__kept_devices=self.kept_devices,
            aggregation__clip_norm=self.clip_norm,
            aggregation__server_learning_rate=self.server_learning_rate,
        )
        for name in ("momentum", "beta1", "beta2"):
            value = getattr(self, name)
            require_range(f"aggregation.{name}", value, 0 <= value < 1, "in [0, 1)")
        require_above_zero(aggregation__tau=self.tau)
        self._refuse_settings_without_effect("rule", RULES)
        self._refuse_settings_without_effect("optimiser", SERVER_OPTIMISERS)

    def _refuse_settings_without_effect(
        self, choice: str, settings: Mapping[str, tuple[str, ...]]
    ) -> None:
        """A setting of what was not chosen would do nothing, and its author would not know."""
        chosen = getattr(self, choice)
        default = {field.name: field.default for field in fields(self)}
        for name in dict.fromkeys(name for names in settings.values() for name in names):
            value = getattr(self, name)
            owners = " or ".join(owner for owner in settings if name in settings[owner])
            require(
                name in settings[chosen] or value == default[name],
                f"aggregation.{name} is {value}, but aggregation.{choice} is {chosen}; "
                f"leave it out, or choose {owners}",
            )

    @property
    def learning_rate(self) -> float:
        """The server optimiser's, with its own default."""
        return self.server_learning_rate or _OWN_LEARNING_RATE[self.optimiser]

    @property
    def least_devices(self) -> int:
        """With fewer updates the rule would not keep what it promises."""
        match self.rule:
            case "trimmed_mean":  # one at each end
                return math.ceil(1 / self.trimmed_fraction)
            case "multi_krum":  # n >= 2f + 3, as Krum's proof has it
                return max(2 * self.hostile_devices + 3, self.kept_devices + self.hostile_devices)
        return 1


def default_pool(method: Method) -> PoolPolicy:
    """The policy of a method's pools, where nothing else is said: it suits the images it makes."""
    return PoolPolicy(near_threshold=method.near_threshold)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines what a run learns."""

    model: ModelSpec
    normalisation: Normalisation
    rounds: int  # T
    seed: int = 0
    training: TrainingRecipe = field(default_factory=TrainingRecipe)
    method: Method = field(default_factory=FedAvg)
    cohort_size: int = 0  # |K_t|; 0 means every available device
    class_names: tuple[str, ...] = ()  # empty: classes are their numbers
    sampling: Sampling = field(default_factory=Sampling)
    aggregation: AggregationRecipe = field(default_factory=AggregationRecipe)
    compression: str = "none"  # of the updates: or "fp16", "int8"
    pool: PoolPolicy = field(default_factory=PoolPolicy)

    def __post_init__(self) -> None:
        require_at_least(1, rounds=self.rounds)
        require_range("seed", self.seed, 0 <= self.seed < 2**63, "in [0, 2^63)")
        require_at_least(0, cohort_size=self.cohort_size)
        if self.sampling.strategy != "uniform":
            require(
                self.cohort_size > 0,
                f"sampling.strategy is {self.sampling.strategy}, but without a cohort_size every "
                "device trains; set cohort_size",
            )
        if self.sampling.candidates:
            require_at_least(self.cohort_size, sampling__candidates=self.sampling.candidates)
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
        require_one_of("compression", self.compression, COMPRESSIONS)
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
        """The same with the learning rate of this round, and with no other later."""
        training = self.training.in_round(round_number)
        return self if training is self.training else replace(self, training=training)
