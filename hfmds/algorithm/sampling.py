"""Every random choice of the algorithm, except the first weights.

This module needs only numpy. So each engine trains on the same batches in the same order, and
starts synthesis from the same noise. The functions keep no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.seeds import generator
from hfmds.domain.recipe import Recipe, Sampling
from hfmds.errors import Unavailable

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that could take work."""

    device_id: str
    samples: int
    last_loss: float | None = None  # of its last training in this run; None: it has not trained yet


def choose_cohort(
    candidates: Iterable[Candidate], recipe: Recipe, round_number: int
) -> tuple[str, ...]:
    """Draw K_t, the cohort of a round; every fleet draws it with this function."""
    cohort = sample_cohort(
        candidates, recipe.cohort_size, recipe.sampling, recipe.seed, round_number
    )
    if not cohort:
        raise Unavailable(
            f"round {round_number}: no device is available; start or reconnect devices"
        )
    return cohort


def sample_cohort(
    candidates: Iterable[Candidate],
    size: int,
    sampling: Sampling,
    run_seed: int,
    round_number: int,
    purpose: str = "cohort",
) -> tuple[str, ...]:
    """Draw `size` of the devices; all of them when size is 0 or no more are available.

    The order of the candidates does not matter, and the result is sorted. `purpose` tells apart
    several draws of one round.
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
    """Draw devices in proportion to their samples, without replacement."""
    if count >= len(devices):
        return list(devices)
    samples = np.array([device.samples for device in devices], np.float64)
    drawn = random.choice(len(devices), count, replace=False, p=samples / samples.sum())
    return [devices[i] for i in drawn]


def _worst_first(device: Candidate) -> tuple[bool, float, str]:
    """Sort devices that never trained first, then by falling loss, NaN highest; ties by id."""
    known = device.last_loss is not None
    loss = device.last_loss if device.last_loss is not None else 0.0
    return (known, -math.inf if math.isnan(loss) else -loss, device.device_id)


def epoch_batches(samples: int, batch_size: int, random: np.random.Generator) -> Iterator[Indices]:
    """Pass over all samples once, in a fresh order; the last batch may be smaller."""
    order = random.permutation(samples)
    for start in range(0, samples, batch_size):
        yield order[start : start + batch_size]


def choose(samples: int, count: int, random: np.random.Generator) -> Indices:
    """Draw `count` indices below `samples`, without replacement if there are enough samples."""
    return random.choice(samples, count, replace=count > samples)


def initial_noise(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    """Draw N(0, I), where synthetic images start, in the model's normalised space."""
    return random.standard_normal(shape, dtype=np.float32)
