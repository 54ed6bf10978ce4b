"""Builds networks in torch, and converts their weights from and to numpy arrays by name.

Our networks are in `networks`. How users add their own is in `architectures`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hfmds.algorithm.models.architectures import Factory, build_architecture, factory_of
from hfmds.algorithm.models.split_model import SplitModel as SplitModel
from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.domain.learning import Weights
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import InvalidInput

# A new module draws from torch's generator, which the process shares. Without the lock, a model
# built in another thread would take numbers out of the seed's stream, and w^0 would vary.
_building = threading.RLock()


def build_model(spec: ModelSpec) -> SplitModel:
    """Build the network that a spec names, with random weights."""
    with _building:
        return build_architecture(spec)


def model_bytes(spec: ModelSpec) -> int:
    """Compute the size of a model's weights without making them."""
    with torch.device("meta"):
        return sum(4 * tensor.numel() for tensor in build_model(spec).state_dict().values())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let networks built within draw from this seed; keep the process's random state."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def initial_weights(spec: ModelSpec, seed: int) -> Weights:
    """Draw w^0 by torch's own initialisation."""
    with seeded(seed):
        return weights_of(build_model(spec))


def model_with(spec: ModelSpec, weights: Weights) -> SplitModel:
    """Build the network that a spec names with these weights; ignore parts of other networks."""
    template = _template(spec, factory_of(spec))
    own = template.state_dict(keep_vars=True)
    given = _require_fit(own, classifier_of(weights))
    # Drawing weights only to replace them would cost as much as a training step. deepcopy takes
    # objects in its memo as already copied, so the copy gets the given weights.
    return copy.deepcopy(template, {id(own[name]): _like(own[name], given[name]) for name in own})


def model_on(device: str, spec: ModelSpec, weights: Weights) -> SplitModel:
    """Build a network for computing: on torch's `device`, in channels_last, the faster layout."""
    return model_with(spec, weights).to(device).to(memory_format=torch.channels_last)


def images_on(device: str, normalised: NDArray[np.float32]) -> Tensor:
    """Load normalised images for a network of `model_on`."""
    images = torch.from_numpy(normalised).to(device)
    return images.contiguous(memory_format=torch.channels_last)


@lru_cache(maxsize=4)
def _template(spec: ModelSpec, factory: Factory) -> SplitModel:
    """Build a network to copy. `factory` is part of the key: a name may be registered again."""
    with seeded(0):
        return build_model(spec)


def weights_of(model: nn.Module) -> Weights:
    """Copy a model's parameters and buffers to contiguous float32 arrays."""
    return {name: _array_of(tensor) for name, tensor in model.state_dict().items()}


def _array_of(tensor: Tensor) -> NDArray[np.float32]:
    if tensor.is_meta:  # of a network that is only measured: a shape without values
        return np.broadcast_to(np.float32(0), tensor.shape)
    return np.array(tensor.float().numpy(force=True), order="C")


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model; refuse missing and unexpected weights and other shapes."""
    own = model.state_dict()
    _require_fit(own, weights)
    for name, tensor in own.items():
        tensor.copy_(_like(tensor, weights[name]))


def _require_fit(own: Mapping[str, Tensor], weights: Weights) -> Weights:
    """Return the weights; InvalidInput if a model with the tensors `own` cannot hold them."""
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if missing or unexpected:
        raise InvalidInput(
            f"these weights are of another model: missing {missing}, unexpected {unexpected}; "
            "check the recipe's model against where the weights come from"
        )
    for name, tensor in own.items():
        shape = weights[name].shape
        if shape != tuple(tensor.shape):
            raise InvalidInput(
                f"weight {name!r} has shape {list(shape)}, the model {list(tensor.shape)}; "
                "check the recipe's channels, image size and classes"
            )
    return weights


def _like(tensor: Tensor, array: NDArray[np.float32]) -> Tensor:
    """Copy these values into a new tensor of the same kind."""
    # Integers, such as BatchNorm's count of batches, may return as a mean over devices. Their
    # fraction is cut off here.
    values = torch.tensor(array).to(tensor.dtype)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, tensor.requires_grad)
    return values
