"""A device's task and what comes of it, whichever engine does the work. Only numpy.

The reference engine is in torch: `hfmds.algorithm.methods`, by the method that the recipe names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import LabelledImages, SyntheticBatch, Weights
from hfmds.domain.recipe import Recipe
from hfmds.errors import InvalidInput

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each step with steps done and steps in all; raising from it ends the work."""

Memory: TypeAlias = Mapping[str, NDArray[np.float32]]
"""What a device keeps of a task for a later one of the same run; it never leaves it.

For the next one of the same kind, unless the method says otherwise (`Method.memory_of`).
"""


@dataclass(frozen=True, slots=True)
class LocalWork:
    """All that one device's task depends on: the same values give the same result."""

    recipe: Recipe
    round_number: int  # t
    weights: Weights  # w^t
    shard: LabelledImages  # the device's own data
    seed: int
    pool: LabelledImages | None = None  # D_syn; None before the first
    memory: Memory = field(default_factory=dict)  # empty at the first task
    plan: Path | None = None  # how to compute it, for engines without torch (`hfmds.plans`)

    def __post_init__(self) -> None:
        self.shard.require_fit(self.recipe.model, "the device's shard")
        if not len(self.shard):
            raise InvalidInput("the device's shard is empty; a device needs data to take part")
        if self.pool is not None:
            self.pool.require_fit(self.recipe.model, "the synthetic pool")


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """w_k^t and how it came about."""

    weights: Weights  # those that the method trains in this round
    samples: int  # in the shard
    loss: float  # mean over the last local epoch
    memory: Memory = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SynthesisHealth:
    """Numbers by which a broken synthesis is noticed; loss and accuracy of the images as sent."""

    matching_loss: float  # L_HFM
    classification_loss: float  # L_C
    accuracy: float  # of the global model on the synthetic images, in [0, 1]
    real_margin: float  # mean over z of: logit of the class minus the highest other
    hard_margin: float  # the same over z_h; lower, or the features are not hard
    gradient_ratio: float  # |dL_HFM/dx| / |dL_C/dx| at the first step; 0.1 to 10 is sound


@dataclass(frozen=True, slots=True)
class Synthesis:
    """What one device made, what it keeps for its next time, and how it went."""

    batch: SyntheticBatch
    memory: Memory = field(default_factory=dict)
    health: SynthesisHealth | None = None  # only a synthesis by feature matching has one
