"""How the name of a network in a recipe becomes a network, in torch.

A recipe names an architecture. Besides our own networks that is one that this machine's owner
brought: registered in code, or installed with a package that has an entry point in the group
`hfmds.models`. A recipe can never make a machine import anything else.
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
"""Builds the network for a spec's images and classes; often simply the class of the network."""

_OURS: dict[str, Factory] = {PAPER_CNN: PaperCNN, RESNET_GN: ResNetGN}
_registered: dict[str, Factory] = {}
_loaded: dict[str, Factory] = {}  # from entry points, when first asked for
_found_sound: set[ModelSpec] = set()


def register_architecture(name: str, factory: Factory, *, replace: bool = False) -> None:
    """Let recipes in this process name a network of one's own.

    Other processes do not hear of it: what a fleet of devices is to train has to be installed on
    each of them, with an entry point.
    """
    if name in _OURS:
        raise Conflict(f"{name!r} is a network of HFMDS-FL itself; choose another name")
    if not replace and _registered.get(name, factory) is not factory:
        raise Conflict(
            f"another network is registered as {name!r}; choose another name, or say replace=True"
        )
    _registered[name] = factory
    _found_sound.difference_update([s for s in _found_sound if s.architecture == name])


def known_architectures() -> list[str]:
    """All names a recipe may use on this machine."""
    return sorted({*_OURS, *_registered, *entry_points(group=ENTRY_POINT_GROUP).names})


def build_architecture(spec: ModelSpec) -> SplitModel:
    """A new network, drawn from torch's generator; the first of its kind is tried out.

    What comes back need not be a subclass of SplitModel, but has all that one declares.
    """
    factory = factory_of(spec)
    if spec.architecture not in _OURS and spec not in _found_sound:
        # Tried on a network of its own, so that the one handed out is as its factory made it.
        with torch.random.fork_rng(devices=[]):
            tried = _build(factory, spec)
            require_split(tried, spec.architecture)
            if torch.get_default_device().type != "meta":  # no values there to look at
                require_sound(cast(SplitModel, tried), spec)
                _found_sound.add(spec)
    return cast(SplitModel, _build(factory, spec))


def factory_of(spec: ModelSpec) -> Factory:
    """What builds the network that a spec names."""
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
            + f"; choose one of: {', '.join(names)}; or install the package that brings it, "
            "on the coordinator and on every device"
        )
    if len(installed) > 1:
        packages = " and ".join(sorted(_package(entry) for entry in installed))
        raise ConfigurationError(
            f"model.architecture {name!r} is brought by {packages}; uninstall all but one"
        )
    with torch.random.fork_rng(devices=[]):  # a package may draw numbers as it is imported
        return _loaded.setdefault(name, _load(installed[0]))


def _load(entry: EntryPoint) -> Factory:
    try:
        factory = entry.load()
    except Exception as error:  # whoever waits for it gets it
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
    except Exception as error:  # whoever waits for it gets it
        raise InvalidInput(
            f"{spec.architecture!r} cannot be built for images of {list(spec.image_shape)} "
            f"(channels, height, width) and {spec.classes} classes: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
