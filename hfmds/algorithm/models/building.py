"""Networks in torch, and their weights as numpy arrays by name.

Which networks there are is in `networks`, how to bring one's own in `architectures`. Knows no
training and no synthesis.
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

# A new module draws from torch's one generator per process. Without the lock a model built in
# another thread would take numbers out of the seed's stream, and w_0 would be anybody's.
_building = threading.RLock()


def build_model(spec: ModelSpec) -> SplitModel:
    """The network a spec names, with random weights."""
    with _building:
        return build_architecture(spec)


def model_bytes(spec: ModelSpec) -> int:
    """The size of a model's weights, without making them."""
    with torch.device("meta"):
        return sum(4 * tensor.numel() for tensor in build_model(spec).state_dict().values())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Networks built within draw from this seed; the process's random state stays as it was."""
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def initial_weights(spec: ModelSpec, seed: int) -> Weights:
    """w_0, by torch's own initialisation."""
    with seeded(seed):
        return weights_of(build_model(spec))


def model_with(spec: ModelSpec, weights: Weights) -> SplitModel:
    """The network a spec names, holding these weights; other parts of them are left aside."""
    template = _template(spec, factory_of(spec))
    own = template.state_dict(keep_vars=True)
    given = _require_fit(own, classifier_of(weights))
    # A copy, because drawing weights only to replace them costs as much as a training step; and
    # what deepcopy finds in its memo it takes for copied already.
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
    """A network to copy; of another factory, should the name be registered anew, another one."""
    with seeded(0):
        return build_model(spec)


def weights_of(model: nn.Module) -> Weights:
    """A copy of a model's parameters and buffers, as contiguous float32 arrays."""
    return {name: _array_of(tensor) for name, tensor in model.state_dict().items()}


def _array_of(tensor: Tensor) -> NDArray[np.float32]:
    if tensor.is_meta:  # of a network that is only to be measured: a form without content
        return np.broadcast_to(np.float32(0), tensor.shape)
    return np.array(tensor.float().numpy(force=True), order="C")


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a model, refusing any that are missing, unexpected or of another shape."""
    own = model.state_dict()
    _require_fit(own, weights)
    for name, tensor in own.items():
        tensor.copy_(_like(tensor, weights[name]))


def _require_fit(own: Mapping[str, Tensor], weights: Weights) -> Weights:
    """The weights, unless a model that has tensors of its `own` by name cannot hold them."""
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
    """A tensor of the same kind with a copy of these values."""
    # A whole number, such as BatchNorm's count of batches, may come back as a mean over devices:
    # its fraction is cut off here.
    values = torch.tensor(array).to(tensor.dtype)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, tensor.requires_grad)
    return values
