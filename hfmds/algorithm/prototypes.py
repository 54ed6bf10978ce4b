"""Prototypes: the centre of each class's features on one device. Only numpy: engines share it.

The paper averages the features that the local model gives during training. That is an option
(`Hfmds.local_prototypes`). Departure, measured: by default they come from the global model at
synthesis time, because a drifting local model's features are twice as large before the first
refresh, and hard features then land far across the boundary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.local_work import Memory
from hfmds.domain.methods import Hfmds
from hfmds.errors import InvalidInput

Prototypes: TypeAlias = Mapping[int, NDArray[np.float32]]
"""zbar_c by class c. The device keeps them from one time to the next; they never leave it."""


class ClassMeans:
    """z_c: the mean feature of each class, over all that was added."""

    def __init__(self) -> None:
        self._sums: dict[int, NDArray[np.float64]] = {}
        self._counts: dict[int, int] = {}

    def add(self, features: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        for c in np.unique(labels).tolist():
            of_class = features[labels == c]
            self._sums[c] = self._sums.get(c, 0) + of_class.sum(axis=0, dtype=np.float64)
            self._counts[c] = self._counts.get(c, 0) + len(of_class)

    def items(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Each class that was seen, with its mean."""
        return ((c, total / self._counts[c]) for c, total in self._sums.items())


def prototypes_at_refresh(
    memory: Memory, features: NDArray[np.float32], labels: NDArray[np.int64], settings: Hfmds
) -> Prototypes:
    """The prototypes to synthesise with, from what the global model gives for the device's images.

    Where they are the local model's, the features stand in for classes it has not trained on yet.
    """
    means = ClassMeans()
    means.add(features, labels)
    momentum = 1.0 if settings.local_prototypes else settings.prototype_momentum
    return update_prototypes(_remembered(memory), means, momentum)


def prototypes_after_training(memory: Memory, seen: ClassMeans, settings: Hfmds) -> Memory:
    """What a device whose local model makes the prototypes remembers of a round's training."""
    return _kept(update_prototypes(_remembered(memory), seen, settings.prototype_momentum))


def prototypes_after_refresh(prototypes: Prototypes, settings: Hfmds) -> Memory:
    """What a device remembers of a refresh: nothing where its training makes the prototypes."""
    return {} if settings.local_prototypes else _kept(prototypes)


def _kept(prototypes: Prototypes) -> Memory:
    return {str(c): zbar for c, zbar in prototypes.items()}


def _remembered(memory: Memory) -> Prototypes:
    return {int(c): zbar for c, zbar in memory.items()}


def update_prototypes(previous: Prototypes, means: ClassMeans, momentum: float) -> Prototypes:
    """zbar_c <- (1 - lambda) z_c + lambda zbar_c of the time before.

    The paper prints the previous z_c, without the bar, but speaks of momentum: it is read as a
    running mean. A class's first prototype is its first mean; an absent class keeps its prototype.
    """
    updated = dict(previous)
    for c, mean in means.items():
        before = previous.get(c, mean)
        if before.shape != mean.shape:
            raise InvalidInput(
                f"the prototype of class {c} has {before.shape[0]} features, the model "
                f"{mean.shape[0]}; it is from another run: remove it"
            )
        updated[c] = ((1 - momentum) * mean + momentum * before).astype(np.float32)
    return updated
