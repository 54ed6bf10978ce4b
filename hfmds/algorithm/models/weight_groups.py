"""Splits and joins the weights of several networks. Only numpy.

The classifier's weights have torch's own names. Other networks of a method, such as a generator,
put their part in front: "generator/output.weight".
"""

from __future__ import annotations

from hfmds.domain.learning import Weights

_BEHIND_PART = "/"


def classifier_of(weights: Weights) -> Weights:
    """Return the classifier's weights alone."""
    return {name: weights[name] for name in weights if _BEHIND_PART not in name}


def part_of(weights: Weights, part: str) -> Weights:
    """Return the weights of another part, by the names in its network."""
    prefix = part + _BEHIND_PART
    return {name.removeprefix(prefix): weights[name] for name in weights if name.startswith(prefix)}


def as_part(part: str, weights: Weights) -> Weights:
    """Return a network's weights with the part in front of their names."""
    return {f"{part}{_BEHIND_PART}{name}": weights[name] for name in weights}
