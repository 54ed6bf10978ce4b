"""What an engine hands back for a device's task, whichever engine ran it. Only numpy.

The reference engine is in torch: `training.train`, `synthesis.synthesise`, `evaluation.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hfmds.algorithm.prototypes import Prototypes
from hfmds.algorithm.types import SyntheticBatch, Weights

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each step with steps done and steps in all; raising from it ends the work."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """w_k^t and how it came about."""

    weights: Weights
    samples: int  # in the shard
    loss: float  # mean over the last local epoch


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
    prototypes: Prototypes
    health: SynthesisHealth
