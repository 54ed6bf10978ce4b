"""Every random choice the algorithm makes, apart from the first weights.

Only numpy, so that each engine trains on the same batches in the same order and starts synthesis
from the same noise. The functions draw from the generator they are given and keep no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.seeds import generator
from hfmds.domain.recipe import Sampling

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that could take work."""

    device_id: str
    samples: int
    last_loss: float | None = None  # of its last training in this run; None: it has not trained yet


def sample_cohort(
    candidates: Iterable[Candidate],
    size: int,
    sampling: Sampling,
    run_seed: int,
    round_number: int,
    purpose: str = "cohort",
) -> tuple[str, ...]:
    """K_t: `size` of the devices, sorted; all of them when size is 0 or there are no more.

    They are sorted first, so the order in which they came online does not matter. `purpose` names
    the draw, where a round needs another one.
    """
    devices = sorted(candidates, key=lambda candidate: candidate.device_id)
    if size == 0 or size >= len(devices):
        return tuple(device.device_id for device in devices)
    random = generator(run_seed, purpose, round_number)
    if sampling.strategy == "uniform":
        chosen = [devices[i] for i in random.choice(len(devices), size, replace=False)]
    elif sampling.strategy == "by_samples":
        chosen = _by_samples(devices, size, random)
    else:  # power_of_choice
        drawn = _by_samples(devices, max(size, sampling.candidates), random)
        chosen = sorted(drawn, key=_worst_first)[:size]
    return tuple(sorted(device.device_id for device in chosen))


def _by_samples(
    devices: Sequence[Candidate], count: int, random: np.random.Generator
) -> list[Candidate]:
    """So many of the devices, each drawn in proportion to its samples among those left."""
    if count >= len(devices):
        return list(devices)
    samples = np.array([device.samples for device in devices], np.float64)
    drawn = random.choice(len(devices), count, replace=False, p=samples / samples.sum())
    return [devices[i] for i in drawn]


def _worst_first(device: Candidate) -> tuple[bool, float, str]:
    """Who never trained; then the highest loss, and a NaN is the highest; ties by id."""
    known = device.last_loss is not None
    loss = device.last_loss if device.last_loss is not None else 0.0
    return (known, -math.inf if math.isnan(loss) else -loss, device.device_id)


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
