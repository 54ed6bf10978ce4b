"""Server optimisers: apply the combined change of a round like a gradient. Only numpy.

The change, combined weights minus w^t, is the pseudo-gradient of Reddi et al., "Adaptive Federated
Optimization" (2021), Algorithm 2. The optimiser's state is float32 arrays by name in the
checkpoint, so a resumed run continues to the bit.
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
"""The optimiser's state for a block of a weight; a step changes it in place."""

_VELOCITY, _FIRST_MOMENT, _SECOND_MOMENT = "velocity", "first_moment", "second_moment"


def server_step(
    settings: AggregationRecipe,
    before: Weights,
    combined: Weights,
    learned: Collection[str],
    state: Weights,
) -> tuple[Weights, Weights]:
    """Return w^{t+1} and the optimiser's new state.

    The step applies to `learned` weights and writes into their arrays in `combined`. Other weights
    are taken from `combined` as they are. `state` stays unchanged because a round may be replayed.
    """
    if settings.optimiser == "none":
        return combined, {}
    if settings.optimiser == "fedavgm":
        step, initial = _fedavgm, {_VELOCITY: 0.0}
    else:
        # v starts at tau^2, the smallest value that Reddi et al. allow.
        step, initial = _fedadam, {_FIRST_MOMENT: 0.0, _SECOND_MOMENT: settings.tau**2}
    new_state = dict(state)  # also of weights that this round does not train
    for name in learned:
        for what, value in initial.items():
            key = f"{what}/{name}"
            earlier = new_state.get(key, np.full(combined[name].shape, value, np.float32))
            new_state[key] = np.array(earlier)
    for block in blocks_of(combined, learned):
        here = slice(block.start, block.stop)
        values = combined[block.name].reshape(-1)[here]
        memories = {w: new_state[f"{w}/{block.name}"].reshape(-1)[here] for w in initial}
        old = np.empty(len(block), np.float32)
        read_block(before, block, old)
        change = np.subtract(values, old, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            values[...] = old + step(settings, change, memories)
        if not np.isfinite(values).all():
            raise Diverged(
                f"the server's step of {settings.optimiser} left the finite numbers in "
                f"{block.name!r}; lower aggregation.server_learning_rate"
            )
    return combined, new_state


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

    Like their Algorithm 2, and unlike Adam, it does not correct the bias of m and v.
    """
    beta1, beta2 = settings.beta1, settings.beta2
    m = _remember(memories[_FIRST_MOMENT], beta1, 1 - beta1, change)
    v = _remember(memories[_SECOND_MOMENT], beta2, 1 - beta2, change**2)
    return settings.learning_rate * m / (np.sqrt(v) + settings.tau)


def _remember(
    memory: NDArray[np.float32], keep: float, take: float, new: NDArray[np.float64]
) -> NDArray[np.float64]:
    """memory <- keep * memory + take * new. Return it as stored, as a resumed run reads it."""
    memory[...] = keep * memory.astype(np.float64) + take * new
    return memory.astype(np.float64)
