"""The reference engine: `hfmds.algorithm` in torch. The only edge module with torch."""

from __future__ import annotations

import torch

from hfmds.algorithm.engine import Progress, Synthesis, TrainedModel
from hfmds.algorithm.prototypes import Prototypes
from hfmds.algorithm.synthesis import synthesise
from hfmds.algorithm.training import train
from hfmds.algorithm.types import LabelledImages, Recipe, Weights
from hfmds.errors import ConfigurationError


class TorchEngine:
    """Torch on the processor."""

    name = "torch-cpu"

    def __init__(self, compute_device: str = "cpu", threads: int = 1) -> None:
        if compute_device == "cuda":
            lack = (
                "hfmds.algorithm computes on the processor only in this version"
                if torch.cuda.is_available()
                else "this machine has no CUDA GPU that torch can use"
            )
            raise ConfigurationError(
                f"HFMDS_COMPUTE_DEVICE is cuda, but {lack}; set it to cpu or auto"
            )
        torch.set_num_threads(threads)

    def train(
        self,
        recipe: Recipe,
        weights: Weights,
        shard: LabelledImages,
        pool: LabelledImages | None,
        seed: int,
        progress: Progress,
    ) -> TrainedModel:
        return train(recipe, weights, shard, pool, seed, progress)

    def synthesise(
        self,
        recipe: Recipe,
        weights: Weights,
        shard: LabelledImages,
        previous: Prototypes,
        seed: int,
        progress: Progress,
    ) -> Synthesis:
        return synthesise(recipe, weights, shard, previous, seed, progress)
