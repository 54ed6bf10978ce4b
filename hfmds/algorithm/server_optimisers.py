"""What the server does with the combined change: takes it as it is, or as a gradient. Only numpy.

The change of a round, combined minus w^t, is the pseudo-gradient of Reddi et al., "Adaptive
Federated Optimization" (2021), Algorithm 2. What an optimiser remembers is named arrays like
weights, in float32, part of the checkpoint: a resumed run goes on to the bit.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.recipes import AggregationRecipe
from hfmds.algorithm.types import Weights
from hfmds.errors import Diverged

_VELOCITY, _FIRST_MOMENT, _SECOND_MOMENT = "velocity/", "first_moment/", "second_moment/"


def server_step(
    settings: AggregationRecipe,
    before: Weights,
    combined: Weights,
    learned: Collection[str],
    state: Weights,
) -> tuple[Weights, Weights]:
    """w^{t+1} and the optimiser's new state; what is not learned is taken as it was combined."""
    if settings.optimiser == "none":
        return combined, {}
    step = _fedavgm if settings.optimiser == "fedavgm" else _fedadam
    weights = dict(combined)
    remembered = {name: state[name] for name in state}  # also of weights not trained in this round
    for name in learned:
        start = np.asarray(before[name], np.float64)
        moved = start + step(settings, name, combined[name] - start, remembered)
        with np.errstate(over="ignore"):  # it is looked for here
            weights[name] = moved.astype(np.float32)
        if not np.isfinite(weights[name]).all():
            raise Diverged(
                f"the server's step of {settings.optimiser} left the finite numbers in {name!r}; "
                "lower aggregation.server_learning_rate"
            )
    return weights, remembered


def _fedavgm(
    settings: AggregationRecipe,
    name: str,
    change: NDArray[np.float64],
    state: dict[str, NDArray[np.float32]],
) -> NDArray[np.float64]:
    """FedAvgM (Hsu, Qi, Brown, 2019): v <- beta v + change; the step is eta v."""
    velocity = settings.momentum * _remembered(state, _VELOCITY + name, change, 0.0) + change
    return settings.learning_rate * _remember(state, _VELOCITY + name, velocity)


def _fedadam(
    settings: AggregationRecipe,
    name: str,
    change: NDArray[np.float64],
    state: dict[str, NDArray[np.float32]],
) -> NDArray[np.float64]:
    """FedAdam (Reddi et al., 2021): the step is eta m / (sqrt(v) + tau)."""
    # As in their Algorithm 2: no correction of the bias that Adam itself has, and v begins at
    # tau^2, the least they allow.
    m = _remembered(state, _FIRST_MOMENT + name, change, 0.0)
    v = _remembered(state, _SECOND_MOMENT + name, change, settings.tau**2)
    m = _remember(state, _FIRST_MOMENT + name, settings.beta1 * m + (1 - settings.beta1) * change)
    v = _remember(
        state, _SECOND_MOMENT + name, settings.beta2 * v + (1 - settings.beta2) * change**2
    )
    return settings.learning_rate * m / (np.sqrt(v) + settings.tau)


def _remembered(
    state: dict[str, NDArray[np.float32]], name: str, like: NDArray[np.float64], first: float
) -> NDArray[np.float64]:
    return state[name].astype(np.float64) if name in state else np.full(like.shape, first)


def _remember(
    state: dict[str, NDArray[np.float32]], name: str, value: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Keep a value, and go on with what was kept: a resumed run knows no more than that."""
    state[name] = np.asarray(value, np.float32)
    return state[name].astype(np.float64)
