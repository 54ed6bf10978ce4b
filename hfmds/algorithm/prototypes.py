"""Prototypes: the centre of each class's features on one device. Only numpy: engines share it.

The paper averages the features that the local model gives during training. Departure, measured:
here they come from the global model at synthesis time, because a drifting local model's features
are twice as large before the first refresh, and hard features then land far across the boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.errors import InvalidInput

Prototypes: TypeAlias = Mapping[int, NDArray[np.float32]]
"""zbar_c by class c. The device keeps them from one refresh to the next; they never leave it."""


def update_prototypes(
    previous: Prototypes,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    momentum: float,
) -> Prototypes:
    """zbar_c <- (1 - lambda) z_c + lambda zbar_c of the previous refresh.

    The paper prints the previous z_c, without the bar, but speaks of momentum: it is read as a
    running mean. A class's first prototype is its first mean; an absent class keeps its prototype.
    """
    updated = dict(previous)
    for c in np.unique(labels).tolist():
        mean = features[labels == c].mean(axis=0, dtype=np.float64)  # z_c
        before = previous.get(c, mean)
        if before.shape != mean.shape:
            raise InvalidInput(
                f"the prototype of class {c} has {before.shape[0]} features, the model "
                f"{mean.shape[0]}; it is from another run: remove it"
            )
        updated[c] = ((1 - momentum) * mean + momentum * before).astype(np.float32)
    return updated
