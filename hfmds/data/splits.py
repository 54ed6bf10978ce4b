"""Dividing one data set among devices, for simulation: alike, or skewed as in the paper.

Each function returns one array of sample indices per device: disjoint, in random order, all of
one length. That length is `samples_per_device`, or by default the greatest the data allow, so a
few samples may stay unused. Only numpy; the same seed gives the same split.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.seeds import generator
from hfmds.errors import ConfigurationError

Indices = NDArray[np.int64]


def iid(
    labels: NDArray[np.int64], devices: int, seed: int, samples_per_device: int | None = None
) -> list[Indices]:
    """Samples dealt out at random: every device's data are alike."""
    size = _shard_size(len(labels), devices, samples_per_device)
    order = generator(seed, "iid").permutation(len(labels))
    return [order[k * size : (k + 1) * size] for k in range(devices)]


def label_skew(
    labels: NDArray[np.int64],
    devices: int,
    classes_per_device: int,
    seed: int,
    samples_per_device: int | None = None,
) -> list[Indices]:
    """Each device has `classes_per_device` of the classes, and as many samples of each of them.

    The classes are dealt in turn from a random order, so all are held by equally many devices, or
    one more. The rarest share of a class sets the size of all shards.
    """
    _require(devices >= 1, f"{devices} devices: there must be at least 1")
    classes = generator(seed, "classes").permutation(np.unique(labels))
    _require(
        1 <= classes_per_device <= len(classes),
        f"{classes_per_device} classes per device: must be 1 to {len(classes)}, as many as the "
        "data have",
    )
    held = np.resize(classes, (devices, classes_per_device))  # dealt in turn, from the top again
    holders = {c: int((held == c).sum()) for c in classes.tolist()}
    stock = _shuffled_by_class(labels, seed)
    share = min(len(stock[c]) // n for c, n in holders.items() if n)
    if samples_per_device is not None:
        _require(
            samples_per_device >= 1 and samples_per_device % classes_per_device == 0,
            f"{samples_per_device} samples per device: must be a positive multiple of the "
            f"{classes_per_device} classes per device",
        )
        wanted = samples_per_device // classes_per_device
        _require(
            wanted <= share,
            f"{samples_per_device} samples on each of {devices} devices need {wanted} per class "
            f"and device, but the rarest class has only {share}; ask for fewer",
        )
        share = wanted
    _require(share >= 1, f"too few samples for {devices} devices: use fewer devices")
    order = generator(seed, "order")
    return [
        order.permutation(np.concatenate([_take(stock, c, share) for c in own.tolist()]))
        for own in held
    ]


def dirichlet(
    labels: NDArray[np.int64],
    devices: int,
    concentration: float,
    seed: int,
    samples_per_device: int | None = None,
) -> list[Indices]:
    """Each device draws its class proportions from Dir(concentration): 0.01 severe, 100 alike.

    Per client, with equal shard sizes: the class-wise split with a minimum shard practically never
    ends at 0.01. A class that runs out is replaced by the device's other classes, then by any, so
    devices late in the list follow their proportions less when all data are used.
    """
    _require(
        concentration > 0 and np.isfinite(concentration),
        f"Dirichlet concentration {concentration}: must be above 0",
    )
    size = _shard_size(len(labels), devices, samples_per_device)
    classes = np.unique(labels)
    stock = _shuffled_by_class(labels, seed)
    random = generator(seed, "dirichlet")
    shards = []
    for _ in range(devices):
        proportions = random.dirichlet(np.full(len(classes), concentration))
        shard: list[Indices] = []
        missing = size
        while missing:  # each pass fills the shard or empties a class
            left = np.array([len(stock[c]) for c in classes.tolist()])
            wish = np.where(left > 0, proportions, 0)
            if wish.sum() == 0:
                wish = left.astype(np.float64)
            counts = np.minimum(random.multinomial(missing, wish / wish.sum()), left)
            shard += [
                _take(stock, c, n) for c, n in zip(classes.tolist(), counts.tolist(), strict=True)
            ]
            missing -= int(counts.sum())
        shards.append(random.permutation(np.concatenate(shard)))
    return shards


def _shard_size(samples: int, devices: int, samples_per_device: int | None) -> int:
    _require(devices >= 1, f"{devices} devices: there must be at least 1")
    size = samples // devices if samples_per_device is None else samples_per_device
    _require(
        size >= 1 and size * devices <= samples,
        f"{samples} samples cannot give {devices} devices {max(size, 1)} each; use fewer devices, "
        "or fewer samples per device",
    )
    return size


def _shuffled_by_class(labels: NDArray[np.int64], seed: int) -> dict[int, Indices]:
    random = generator(seed, "stock")
    return {c: random.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels).tolist()}


def _take(stock: dict[int, Indices], c: int, count: int) -> Indices:
    taken, stock[c] = stock[c][:count], stock[c][count:]
    return taken


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)
