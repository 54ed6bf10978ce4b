"""Global aggregation: the mean of the devices' weights. Only numpy.

One update is in memory at a time, whatever the size of the cohort; the sum is kept in float64 and
taken in device-id order, so the same updates give the same bits on every run and every fleet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.types import Traffic, Update, Weights
from hfmds.errors import Diverged, InvalidInput, Unavailable


@dataclass(frozen=True, slots=True)
class Aggregate:
    """w^{t+1}, and what went into it."""

    weights: Weights
    devices: tuple[str, ...]
    loss: float  # mean over devices
    traffic: Traffic


def mean_of(updates: Iterable[Update], like: Weights, names: Collection[str]) -> Aggregate:
    """The mean over updates, which must come in device-id order and match `like` in form.

    Uniform, as in the paper: a device's number of samples does not count. `names` are the weights
    that updates have, and must have; the others stay as they are in `like`.
    """
    sums = {name: np.zeros(like[name].shape, np.float64) for name in names}
    devices: list[str] = []
    loss, traffic = 0.0, Traffic()
    for update in updates:
        if devices and update.device_id <= devices[-1]:
            raise InvalidInput(
                f"the update of device {update.device_id!r} comes after that of {devices[-1]!r}; "
                "updates must come once per device, in device-id order"
            )
        _add(sums, update)
        devices.append(update.device_id)
        loss += update.loss
        traffic += update.traffic
    if not devices:
        raise Unavailable("no device delivered an update; the round can be tried again")
    weights = {
        name: (sums[name] / len(devices)).astype(np.float32) if name in sums else like[name]
        for name in like
    }
    return Aggregate(weights, tuple(devices), loss / len(devices), traffic)


def _add(sums: dict[str, NDArray[np.float64]], update: Update) -> None:
    """Add one update to the sums, or refuse it by its device's name."""
    whose = f"the update of device {update.device_id!r}"
    missing, unexpected = sums.keys() - update.weights.keys(), update.weights.keys() - sums.keys()
    if missing or unexpected:
        raise InvalidInput(
            f"{whose} is of another model: missing {sorted(missing)}, "
            f"unexpected {sorted(unexpected)}"
        )
    for name, total in sums.items():
        array = update.weights[name]
        if array.shape != total.shape:
            raise InvalidInput(
                f"{whose} has {name!r} of shape {list(array.shape)}, the model {list(total.shape)}"
            )
        if not np.isfinite(array).all():
            raise Diverged(f"{whose} has a value in {name!r} that is not a finite number")
        total += array
