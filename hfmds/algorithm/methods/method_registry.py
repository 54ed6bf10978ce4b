"""Maps the settings of each method to the class that implements it.

The README of this folder has the steps to add a method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.methods.hfmds import HfmdsMethod
from hfmds.algorithm.methods.related.fedgan import FedGanMethod
from hfmds.algorithm.methods.related.fedgen import FedGenMethod
from hfmds.algorithm.methods.related.fedmix import FedMixMethod
from hfmds.algorithm.methods.related.fedprox import FedProxMethod
from hfmds.algorithm.methods.related.moon import MoonMethod
from hfmds.algorithm.seeds import derive_seed
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, LocalModel
from hfmds.domain.learning import Checkpoint
from hfmds.domain.methods import (
    FedAvg,
    FedGan,
    FedGen,
    FedMix,
    FedProx,
    Hfmds,
    Method,
    Moon,
)
from hfmds.domain.recipe import Recipe
from hfmds.errors import InvalidInput

METHOD_CLASSES: dict[type[Method], type[FedAvgMethod[Any]]] = {
    FedAvg: FedAvgMethod,
    FedProx: FedProxMethod,
    Moon: MoonMethod,
    FedGen: FedGenMethod,
    FedMix: FedMixMethod,
    FedGan: FedGanMethod,
    Hfmds: HfmdsMethod,
}


def loss_of(method: type[Method]) -> Callable[[LocalModel, Batch, Any], BatchLoss]:
    """Return the loss of a method, from which its plans are traced."""
    return METHOD_CLASSES[method].loss


def method_of(recipe: Recipe) -> FedAvgMethod[Any]:
    """Return the implementation of the recipe's method."""
    return METHOD_CLASSES[type(recipe.method)](recipe)


def first_checkpoint(recipe: Recipe) -> Checkpoint:
    """Return the checkpoint before round 1: w^0, drawn from the recipe's seed."""
    return Checkpoint(0, method_of(recipe).first_weights(derive_seed(recipe.seed, "weights")))


def weights_bytes(recipe: Recipe) -> int:
    """Compute the size of a run's weights, all parts included, without making them.

    Raises InvalidInput: the weights are too large for torch to count.
    """
    try:
        with torch.device("meta"):
            weights = method_of(recipe).first_weights(0)
    except (RuntimeError, TypeError, OverflowError) as error:  # torch's errors for such sizes
        raise InvalidInput(
            f"the weights of {recipe.model.architecture} with method {recipe.method.name} are too "
            "large to be counted; make the images, the classes or the method's networks smaller"
        ) from error
    return sum(array.nbytes for array in weights.values())
