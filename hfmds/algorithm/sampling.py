"""Every random choice the algorithm makes, apart from the first weights.

Only numpy, so that each engine trains on the same batches in the same order and starts synthesis
from the same noise. The functions draw from the generator they are given and keep no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.seeds import generator

Indices = NDArray[np.int64]


def sample_cohort(
    devices: Iterable[str], size: int, run_seed: int, round_number: int
) -> tuple[str, ...]:
    """K_t: `size` of the devices, sorted; all of them when size is 0 or there are no more.

    The devices are sorted first, so the order in which they came online does not matter.
    """
    candidates = sorted(set(devices))
    if size == 0 or size >= len(candidates):
        return tuple(candidates)
    chosen = generator(run_seed, "cohort", round_number).choice(
        len(candidates), size, replace=False
    )
    return tuple(candidates[i] for i in sorted(chosen))


def epoch_batches(samples: int, batch_size: int, random: np.random.Generator) -> Iterator[Indices]:
    """One pass over all samples in a fresh order; the last batch may be smaller."""
    order = random.permutation(samples)
    for start in range(0, samples, batch_size):
        yield order[start : start + batch_size]


def choose(samples: int, count: int, random: np.random.Generator) -> Indices:
    """`count` indices below `samples`, without replacement when there are enough."""
    return random.choice(samples, count, replace=count > samples)


def initial_noise(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    """N(0, I), where synthetic images start, in the model's normalised space."""
    return random.standard_normal(shape, dtype=np.float32)
