"""Prototypes zbar_c: the centre of each class's features on one device. Only numpy.

Departure from the paper, measured: by default the global model makes them at synthesis time. The
paper averages the local model's features during training; that is an option
(`Hfmds.local_prototypes`). Before the first refresh, features of the drifting local model are twice
as large, and hard features then land far across the decision boundary.
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
"""zbar_c by class c. The device keeps them between refreshes. They never leave it."""


class ClassMeans:
    """z_c: the mean feature of each class over all added samples."""

    def __init__(self) -> None:
        self._sums: dict[int, NDArray[np.float64]] = {}
        self._counts: dict[int, int] = {}

    def add(self, features: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        """Count these features towards the means of their classes."""
        for c in np.unique(labels).tolist():
            of_class = features[labels == c]
            self._sums[c] = self._sums.get(c, 0) + of_class.sum(axis=0, dtype=np.float64)
            self._counts[c] = self._counts.get(c, 0) + len(of_class)

    def items(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield each class that has samples, with its mean."""
        return ((c, total / self._counts[c]) for c, total in self._sums.items())


def prototypes_at_refresh(
    memory: Memory, features: NDArray[np.float32], labels: NDArray[np.int64], settings: Hfmds
) -> Prototypes:
    """Return the prototypes for a synthesis; `features` are the global model's, of all images.

    With local prototypes, these features serve only classes that have no prototype yet.
    """
    means = ClassMeans()
    means.add(features, labels)
    momentum = 1.0 if settings.local_prototypes else settings.prototype_momentum
    return update_prototypes(_from_memory(memory), means, momentum)


def prototypes_after_training(memory: Memory, seen: ClassMeans, settings: Hfmds) -> Memory:
    """Return what a device with local prototypes keeps after a round's training."""
    return _to_memory(update_prototypes(_from_memory(memory), seen, settings.prototype_momentum))


def prototypes_after_refresh(prototypes: Prototypes, settings: Hfmds) -> Memory:
    """Return what a device keeps after a refresh: nothing if its training makes the prototypes."""
    return {} if settings.local_prototypes else _to_memory(prototypes)


def _to_memory(prototypes: Prototypes) -> Memory:
    return {str(c): zbar for c, zbar in prototypes.items()}


def _from_memory(memory: Memory) -> Prototypes:
    return {int(c): zbar for c, zbar in memory.items()}


def update_prototypes(previous: Prototypes, means: ClassMeans, momentum: float) -> Prototypes:
    """zbar_c <- (1 - lambda) z_c + lambda zbar_c of the last refresh.

    The paper prints the last z_c, without the bar, but speaks of momentum. We read it as a running
    mean. The first prototype of a class is its first mean. An absent class keeps its prototype.
    """
    updated = dict(previous)
    for c, mean in means.items():
        before = previous.get(c, mean)
        if before.shape != mean.shape:
            raise InvalidInput(
                f"the prototype of class {c} has {before.shape[0]} features, the model has "
                f"{mean.shape[0]}; it is from another run: remove it"
            )
        updated[c] = ((1 - momentum) * mean + momentum * before).astype(np.float32)
    return updated
