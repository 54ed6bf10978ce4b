"""A device's task and its results, the same for every engine. Only numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import LabelledImages, SyntheticBatch, Weights
from hfmds.domain.recipe import Recipe, TrainingRecipe
from hfmds.errors import InvalidInput

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each step with the steps done and all steps; an exception in it ends the work."""


def no_progress(done: int, steps: int) -> None:
    """Ignore the progress."""


Memory: TypeAlias = Mapping[str, NDArray[np.float32]]
"""Arrays that a device keeps from a task for a later task of the same run. They never leave it.

They are for the next task of the same kind, unless the method says otherwise (`Method.memory_of`).
"""


@dataclass(frozen=True, slots=True)
class LocalWork:
    """Every input of one device's task: the same values give the same result."""

    recipe: Recipe
    round_number: int  # t
    weights: Weights  # w^t
    shard: LabelledImages  # the device's own data
    seed: int
    pool: LabelledImages | None = None  # D_syn; None before the first
    memory: Memory = field(default_factory=dict)  # empty at the first task
    residual: Memory = field(default_factory=dict)  # what earlier updates did not carry
    plan: Path | None = None  # graphs for engines without torch (`hfmds.plans`)

    def __post_init__(self) -> None:
        self.shard.require_fit(self.recipe.model, "the device's shard")
        if not len(self.shard):
            raise InvalidInput("the device's shard is empty; a device needs data to take part")
        if self.pool is not None:
            self.pool.require_fit(self.recipe.model, "the synthetic pool")

    @property
    def training(self) -> TrainingRecipe:
        """The settings of local training in this round."""
        return self.recipe.training.in_round(self.round_number)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """w_k^t, and what the device reports and keeps of its training."""

    weights: Weights  # those that the method trains in this round
    samples: int  # in the shard
    loss: float  # mean over the last local epoch
    memory: Memory = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SynthesisHealth:
    """Numbers that show a broken synthesis. Losses and accuracy are of the images as sent."""

    matching_loss: float  # L_HFM
    classification_loss: float  # L_C
    accuracy: float  # of the global model on the synthetic images, in [0, 1]
    real_margin: float  # mean over z of: logit of the class minus the highest other logit
    hard_margin: float  # the same over z_h; it must be lower, or the features are not hard
    gradient_ratio: float  # |dL_HFM/dx| / |dL_C/dx| before the first step; 0.1 to 10 is sound


@dataclass(frozen=True, slots=True)
class Synthesis:
    """One device's synthetic batch, what the device keeps, and the health of the synthesis."""

    batch: SyntheticBatch
    memory: Memory = field(default_factory=dict)
    health: SynthesisHealth | None = None  # only of a synthesis by feature matching
