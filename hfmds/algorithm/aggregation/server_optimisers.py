"""What the server does with the combined change: takes it as it is, or as a gradient. Only numpy.

The change of a round, combined minus w^t, is the pseudo-gradient of Reddi et al., "Adaptive
Federated Optimization" (2021), Algorithm 2. What an optimiser remembers is named arrays like
weights, in float32, part of the checkpoint: a resumed run goes on to the bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.aggregation.blocks import blocks_of, read_block
from hfmds.domain.learning import Weights
from hfmds.domain.recipe import AggregationRecipe
from hfmds.errors import Diverged

Memories: TypeAlias = Mapping[str, NDArray[np.float32]]
"""What is remembered of a block of a weight, to be changed in place."""

_VELOCITY, _FIRST_MOMENT, _SECOND_MOMENT = "velocity", "first_moment", "second_moment"


def server_step(
    settings: AggregationRecipe,
    before: Weights,
    combined: Weights,
    learned: Collection[str],
    state: Weights,
) -> tuple[Weights, Weights]:
    """w^{t+1} and the optimiser's new state; what is not learned is taken as it was combined.

    The arrays of what is learned in `combined` become those of w^{t+1}; `state` stays as it is, for
    a round may be replayed.
    """
    if settings.optimiser == "none":
        return combined, {}
    if settings.optimiser == "fedavgm":
        step, first = _fedavgm, {_VELOCITY: 0.0}
    else:
        # v begins at tau^2, the least that Reddi et al. allow.
        step, first = _fedadam, {_FIRST_MOMENT: 0.0, _SECOND_MOMENT: settings.tau**2}
    remembered = {name: state[name] for name in state}  # also of weights not trained in this round
    for name in learned:
        for what, value in first.items():
            key = f"{what}/{name}"
            earlier = remembered.get(key, np.full(combined[name].shape, value, np.float32))
            remembered[key] = np.array(earlier)
    for block in blocks_of(combined, learned):
        here = slice(block.start, block.stop)
        values = combined[block.name].reshape(-1)[here]
        memories = {w: remembered[f"{w}/{block.name}"].reshape(-1)[here] for w in first}
        old = np.empty(len(block), np.float32)
        read_block(before, block, old)
        change = np.subtract(values, old, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # looked for below
            values[...] = old + step(settings, change, memories)
        if not np.isfinite(values).all():
            raise Diverged(
                f"the server's step of {settings.optimiser} left the finite numbers in "
                f"{block.name!r}; lower aggregation.server_learning_rate"
            )
    return combined, remembered


def _fedavgm(
    settings: AggregationRecipe, change: NDArray[np.float64], memories: Memories
) -> NDArray[np.float64]:
    """FedAvgM (Hsu, Qi, Brown, 2019): v <- beta v + change; the step is eta v."""
    velocity = _remember(memories[_VELOCITY], settings.momentum, 1.0, change)
    return settings.learning_rate * velocity


def _fedadam(
    settings: AggregationRecipe, change: NDArray[np.float64], memories: Memories
) -> NDArray[np.float64]:
    """FedAdam (Reddi et al., 2021): the step is eta m / (sqrt(v) + tau).

    As in their Algorithm 2 without the correction of the bias that Adam itself has.
    """
    beta1, beta2 = settings.beta1, settings.beta2
    m = _remember(memories[_FIRST_MOMENT], beta1, 1 - beta1, change)
    v = _remember(memories[_SECOND_MOMENT], beta2, 1 - beta2, change**2)
    return settings.learning_rate * m / (np.sqrt(v) + settings.tau)


def _remember(
    memory: NDArray[np.float32], keep: float, take: float, new: NDArray[np.float64]
) -> NDArray[np.float64]:
    """memory <- keep * memory + take * new; then what is kept: a resumed run knows no more."""
    memory[...] = keep * memory.astype(np.float64) + take * new
    return memory.astype(np.float64)
