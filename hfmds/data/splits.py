"""Divides a data set among simulated devices: alike, or skewed as in the paper.

`split` follows a `SplitSpec`; there is one function for each kind. Each returns one array of
sample indices per device: disjoint, in random order, none empty. They have `samples_per_device`
samples, by default as many as the data allow, so a few may stay unused. With `unequal` above 0 that
is the mean (or a little less, for sizes are rounded down), and sizes are log-normal: `unequal` is
the standard deviation of their logarithm, so at 0.5 two thirds of them lie within a factor of 1.65.

Only numpy; the same seed gives the same split.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.seeds import generator
from hfmds.errors import ConfigurationError

Indices = NDArray[np.int64]

KINDS = ("iid", "label-skew", "dirichlet")


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """How a data set is divided among devices; the seed comes with each trial."""

    kind: str  # one of KINDS
    devices: int
    classes_per_device: int | None = None  # of label-skew
    concentration: float | None = None  # of dirichlet
    samples_per_device: int | None = None  # None: as many as the data allow
    unequal: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            nearest = difflib.get_close_matches(self.kind.lower().replace("_", "-"), KINDS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(KINDS)}"
            raise ConfigurationError(f"split kind {self.kind!r} is unknown; {hint}")
        for owner, name in (("label-skew", "classes_per_device"), ("dirichlet", "concentration")):
            is_set = getattr(self, name) is not None
            _require(
                is_set or self.kind != owner, f"a {owner} split needs {name}; say how much it is"
            )
            _require(
                not is_set or self.kind == owner,
                f"{name} is given, but a split of kind {self.kind} has none; leave it out, or "
                f"choose kind {owner}",
            )
        _require_devices(self.devices)
        _require_unequal(self.unequal)
        if self.classes_per_device is not None:
            classes = self.classes_per_device
            _require(classes >= 1, f"{classes} classes per device: must be at least 1")
        if self.concentration is not None:
            _require_concentration(self.concentration)
        if self.samples_per_device is not None:
            samples = self.samples_per_device
            _require(samples >= 1, f"{samples} samples per device: must be at least 1")

    @property
    def label(self) -> str:
        """The split in a few words, for titles and tables."""
        match self.kind:
            case "label-skew":
                plural = "" if self.classes_per_device == 1 else "es"
                words = f"{self.classes_per_device} class{plural} per device"
            case "dirichlet":
                words = f"Dirichlet({self.concentration:g})"
            case _:
                words = "IID"
        return words if not self.unequal else f"{words}, unequal {self.unequal:g}"


def split(labels: NDArray[np.int64], spec: SplitSpec, seed: int) -> list[Indices]:
    """Return one array of sample indices for each device."""
    size, unequal = spec.samples_per_device, spec.unequal
    if spec.classes_per_device is not None:
        return label_skew(labels, spec.devices, spec.classes_per_device, seed, size, unequal)
    if spec.concentration is not None:
        return dirichlet(labels, spec.devices, spec.concentration, seed, size, unequal)
    return iid(labels, spec.devices, seed, size, unequal)


def iid(
    labels: NDArray[np.int64],
    devices: int,
    seed: int,
    samples_per_device: int | None = None,
    unequal: float = 0.0,
) -> list[Indices]:
    """Deal out samples at random: the data of all devices are alike."""
    size = _shard_size(len(labels), devices, samples_per_device)
    sizes = _round_down(size * _size_factors(devices, unequal, seed), unequal)
    order = generator(seed, "iid").permutation(len(labels))
    return np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])


def label_skew(
    labels: NDArray[np.int64],
    devices: int,
    classes_per_device: int,
    seed: int,
    samples_per_device: int | None = None,
    unequal: float = 0.0,
) -> list[Indices]:
    """Each device has `classes_per_device` of the classes, and as many samples of each of them.

    The classes are dealt like cards from a deck that is shuffled again when it is empty: all go to
    equally many devices, or one more. The rarest share of a class sets the size of all shards.
    """
    _require_devices(devices)
    classes = np.unique(labels)
    _require(
        1 <= classes_per_device <= len(classes),
        f"{classes_per_device} classes per device: must be 1 to {len(classes)}, as many as the "
        "data have",
    )
    held = _deal(classes, devices, classes_per_device, generator(seed, "classes"))
    factors = _size_factors(devices, unequal, seed)
    demand = {c: float(factors[(held == c).any(axis=1)].sum()) for c in classes.tolist()}
    stock = _shuffled_by_class(labels, seed)
    share = min(len(stock[c]) / n for c, n in demand.items() if n)  # of a class, on average
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
            f"and device, but the rarest class has only {int(share)}; ask for fewer",
        )
        share = wanted
    _require(share >= 1, f"too few samples for {devices} devices: use fewer devices")
    shares = _round_down(share * factors, unequal)
    order = generator(seed, "order")
    return [
        order.permutation(np.concatenate([_take(stock, c, own_share) for c in own.tolist()]))
        for own, own_share in zip(held, shares, strict=True)
    ]


def _deal(
    classes: Indices, devices: int, hand_size: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return [devices, hand_size] classes: none twice in a hand, all about equally often."""
    hands: list[list[int]] = []
    deck: list[int] = []
    for _ in range(devices):
        hand: list[int] = []
        while len(hand) < hand_size:
            if not deck:
                deck = random.permutation(classes).tolist()
            # At the seam of two decks a class may already be in the hand: the next one is taken.
            place = next((i for i, c in enumerate(deck) if c not in hand), None)
            if place is None:
                deck += random.permutation(classes).tolist()
            else:
                hand.append(deck.pop(place))
        hands.append(hand)
    return np.array(hands, np.int64)


def dirichlet(
    labels: NDArray[np.int64],
    devices: int,
    concentration: float,
    seed: int,
    samples_per_device: int | None = None,
    unequal: float = 0.0,
) -> list[Indices]:
    """Each device draws its class proportions from Dir(concentration): 0.01 severe, 100 alike.

    Per client, with equal shard sizes: the class-wise split with a minimum shard practically never
    ends at 0.01. When a class runs out, the device takes its other classes, then any. So
    devices late in the list follow their proportions less if all data are used.
    """
    _require_concentration(concentration)
    size = _shard_size(len(labels), devices, samples_per_device)
    sizes = _round_down(size * _size_factors(devices, unequal, seed), unequal)
    classes = np.unique(labels)
    stock = _shuffled_by_class(labels, seed)
    random = generator(seed, "dirichlet")
    shards = []
    for missing in sizes:
        proportions = random.dirichlet(np.full(len(classes), concentration))
        shard: list[Indices] = []
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
    _require_devices(devices)
    size = samples // devices if samples_per_device is None else samples_per_device
    _require(
        size >= 1 and size * devices <= samples,
        f"{samples} samples cannot give {devices} devices {max(size, 1)} each; use fewer devices, "
        "or fewer samples per device",
    )
    return size


def _size_factors(devices: int, unequal: float, seed: int) -> NDArray[np.float64]:
    """Return the size of each shard relative to the mean; exactly 1 for equal sizes."""
    _require_unequal(unequal)
    logarithms = unequal * generator(seed, "sizes").standard_normal(devices)
    sizes = np.exp(logarithms - logarithms.max())  # cannot overflow
    factors: NDArray[np.float64] = sizes / sizes.mean()
    return factors


def _round_down(sizes: NDArray[np.float64], unequal: float) -> list[int]:
    rounded = [int(size) for size in sizes]
    if 0 in rounded:
        raise ConfigurationError(
            f"device {rounded.index(0)} (the first is 0) would get no samples: sizes are drawn "
            f"with unequal {unequal:g}; make it smaller, use fewer devices, or use more samples on "
            f"each device"
        )
    return rounded


def _shuffled_by_class(labels: NDArray[np.int64], seed: int) -> dict[int, Indices]:
    random = generator(seed, "stock")
    return {c: random.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels).tolist()}


def _take(stock: dict[int, Indices], c: int, count: int) -> Indices:
    samples, stock[c] = stock[c][:count], stock[c][count:]
    return samples


def _require_devices(devices: int) -> None:
    _require(devices >= 1, f"{devices} devices: there must be at least 1")


def _require_concentration(concentration: float) -> None:
    _require(
        concentration > 0 and np.isfinite(concentration),
        f"Dirichlet concentration {concentration}: must be above 0",
    )


def _require_unequal(unequal: float) -> None:
    _require(
        unequal >= 0 and np.isfinite(unequal),
        f"unequal {unequal}: must be 0, for shards of one size, or above",
    )


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)
