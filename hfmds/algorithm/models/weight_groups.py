"""Weights that hold more than one network. Only numpy.

The classifier's weights have the names torch gives them. What a method learns besides, such as a
generator, has names with the part in front: "generator/output.weight".
"""

from __future__ import annotations

from hfmds.domain.learning import Weights

_BEHIND_PART = "/"


def classifier_of(weights: Weights) -> Weights:
    """The classifier's weights alone."""
    return {name: weights[name] for name in weights if _BEHIND_PART not in name}


def part_of(weights: Weights, part: str) -> Weights:
    """The weights of another part, by the names its network knows."""
    prefix = part + _BEHIND_PART
    return {name.removeprefix(prefix): weights[name] for name in weights if name.startswith(prefix)}


def as_part(part: str, weights: Weights) -> Weights:
    """A network's weights, named as a part."""
    return {f"{part}{_BEHIND_PART}{name}": weights[name] for name in weights}
