"""Finds the network that a recipe names, in torch.

A network is ours, or the owner of the machine provides it: registered in code, or installed with a
package that has an entry point in the group `hfmds.models`. A recipe can never make a machine
import anything else.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias, cast

import torch
from torch import nn

from hfmds.algorithm.models.networks import PaperCNN, ResNetGN
from hfmds.algorithm.models.split_model import SplitModel, require_sound, require_split
from hfmds.domain.recipe import PAPER_CNN, RESNET_GN, ModelSpec
from hfmds.errors import ConfigurationError, Conflict, HfmdsError, InvalidInput

ENTRY_POINT_GROUP = "hfmds.models"

Factory: TypeAlias = Callable[[ModelSpec], nn.Module]
"""Builds the network for a spec's images and classes; often the class of the network itself."""

_OURS: dict[str, Factory] = {PAPER_CNN: PaperCNN, RESNET_GN: ResNetGN}
_registered: dict[str, Factory] = {}
_loaded: dict[str, Factory] = {}  # from entry points, at first use
_sound_specs: set[ModelSpec] = set()


def register_architecture(name: str, factory: Factory, *, replace: bool = False) -> None:
    """Let recipes in this process name a network of your own.

    Other processes do not know it. A network that a fleet trains must be installed on every device,
    with an entry point.
    """
    if name in _OURS:
        raise Conflict(f"{name!r} is a network of HFMDS-FL itself; choose another name")
    if not replace and _registered.get(name, factory) is not factory:
        raise Conflict(
            f"another network is registered as {name!r}; choose another name, or say replace=True"
        )
    _registered[name] = factory
    _sound_specs.difference_update([s for s in _sound_specs if s.architecture == name])


def known_architectures() -> list[str]:
    """List all names that a recipe may use on this machine."""
    return sorted({*_OURS, *_registered, *entry_points(group=ENTRY_POINT_GROUP).names})


def build_architecture(spec: ModelSpec) -> SplitModel:
    """Build a network with random weights from torch's generator; check the first of a spec.

    The network need not be a subclass of SplitModel, but it has all members of SplitModel.
    """
    factory = factory_of(spec)
    if spec.architecture not in _OURS and spec not in _sound_specs:
        # The check uses a network of its own, so that the result is as its factory made it.
        with torch.random.fork_rng(devices=[]):
            candidate = _build(factory, spec)
            require_split(candidate, spec.architecture)
            if torch.get_default_device().type != "meta":  # meta tensors have no values to check
                require_sound(cast(SplitModel, candidate), spec)
                _sound_specs.add(spec)
    return cast(SplitModel, _build(factory, spec))


def factory_of(spec: ModelSpec) -> Factory:
    """Find the factory of the network that a spec names."""
    name = spec.architecture
    for known in (_OURS, _registered, _loaded):
        if name in known:
            return known[name]
    installed = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not installed:
        names = known_architectures()
        nearest = difflib.get_close_matches(name, names, n=1)
        raise InvalidInput(
            f"model.architecture {name!r} is not known here"
            + (f" (did you mean {nearest[0]!r}?)" if nearest else "")
            + f"; choose one of: {', '.join(names)}; or install the package that provides it, "
            "on the coordinator and on every device"
        )
    if len(installed) > 1:
        packages = " and ".join(sorted(_package(entry) for entry in installed))
        raise ConfigurationError(
            f"packages {packages} all provide model.architecture {name!r}; uninstall all but one"
        )
    with torch.random.fork_rng(devices=[]):  # an import may draw random numbers
        return _loaded.setdefault(name, _load(installed[0]))


def _load(entry: EntryPoint) -> Factory:
    try:
        factory = entry.load()
    except Exception as error:  # a network may raise anything
        raise ConfigurationError(
            f"model.architecture {entry.name!r}: {entry.value!r} of package {_package(entry)} "
            f"cannot be imported: {_reason(error)}; repair or reinstall that package"
        ) from error
    if not callable(factory):
        raise ConfigurationError(
            f"model.architecture {entry.name!r}: {entry.value!r} of package {_package(entry)} "
            "cannot be called; its entry point must name a function or class that takes a ModelSpec"
        )
    return cast(Factory, factory)


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _build(factory: Factory, spec: ModelSpec) -> nn.Module:
    try:
        return factory(spec)
    except HfmdsError:
        raise
    except Exception as error:  # a network may raise anything
        raise InvalidInput(
            f"{spec.architecture!r} cannot be built for images of {list(spec.image_shape)} "
            f"(channels, height, width) and {spec.classes} classes: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
