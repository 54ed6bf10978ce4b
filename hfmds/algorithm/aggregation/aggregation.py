"""Global aggregation: computes w^{t+1} from w^t and the updates, by the recipe. Only numpy.

    clip       limits the norm of each update's change from w^t
    combine    joins all updates into one, by a rule (`rules`)
    step       moves w^t by the combined change (`server_optimisers`)

The default is the paper's: the mean, without clipping or a server optimiser. Updates count in
device-id order, so the same updates give the same bits on every run and every fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import assert_never

import numpy as np

from hfmds.algorithm.aggregation import rules
from hfmds.algorithm.aggregation.blocks import BLOCK_VALUES, Moved, blocks_of, read_block, shape_of
from hfmds.algorithm.aggregation.server_optimisers import server_step
from hfmds.domain.learning import Traffic, Update, Weights
from hfmds.domain.recipe import AggregationRecipe
from hfmds.errors import Diverged, InvalidInput, Unavailable, WrongState


@dataclass(frozen=True, slots=True)
class Aggregate:
    """w^{t+1} and how it came about."""

    weights: Weights
    devices: tuple[str, ...]  # those whose updates count; Multi-Krum leaves some out
    loss: float  # mean over these devices
    traffic: Traffic  # of all devices
    server_state: Weights = field(default_factory=dict)
    trouble: str = ""  # what failed on the server, although the run goes on


def combine(
    settings: AggregationRecipe,
    weights: Weights,
    updates: Iterable[Update],
    names: Collection[str],
    measured: Callable[[str], bool] = lambda name: False,
    server_state: Weights | None = None,
) -> Aggregate:
    """Compute w^{t+1} from updates in device-id order.

    `names` are the weights that each update must have; other weights stay. From a sequence of
    updates, blocks are read as needed, and no update is in memory as a whole. From an iterator, the
    mean keeps one update in memory at a time, and the other rules keep all.

    `measured` tells which weights are measured and not learned, such as BatchNorm's statistics. The
    rule combines them, but norms and distances leave them out: a count of batches would outweigh
    everything else. The server optimiser leaves them out, too: a variance must stay positive.
    """
    learned = [name for name in names if not measured(name)]
    arrived: list[Update] = []

    def arriving() -> Iterator[Update]:
        for update in updates:
            _require_fit(update, arrived, weights, names)
            arrived.append(replace(update, weights={}))
            if settings.clip_norm:
                update = clipped(update, weights, learned, settings.clip_norm)
            yield update
            del update  # frees it before the next one is made

    chosen: Sequence[Update] = arrived
    if settings.rule == "mean" and not isinstance(updates, Sequence):
        combined = rules.streamed_mean(arriving(), weights, names, settings.weighting)
        _require_enough(arrived, settings)
    else:
        every = list(arriving())
        _require_enough(every, settings)
        match settings.rule:
            case "mean":
                combined = rules.mean(every, weights, names, settings.weighting)
            case "median":
                combined = rules.median(every, weights, names)
            case "trimmed_mean":
                fraction = settings.trimmed_fraction
                combined = rules.trimmed_mean(every, weights, names, fraction)
            case "multi_krum":
                chosen = rules.multi_krum(every, weights, learned, settings)
                combined = rules.mean(chosen, weights, names)
            case unknown:
                assert_never(unknown)
    stepped, state = server_step(settings, weights, combined, learned, server_state or {})
    loss = 0.0
    for update in chosen:  # the bits of sum() depend on the version of Python
        loss += update.loss
    return Aggregate(
        weights=stepped,
        devices=tuple(update.device_id for update in chosen),
        loss=loss / len(chosen),
        traffic=sum((update.traffic for update in arrived), Traffic()),
        server_state=state,
    )


def clipped(update: Update, weights: Weights, learned: Collection[str], longest: float) -> Update:
    """Shorten an update's change from w^t to the norm `longest`, if it is longer.

    Sun et al., "Can You Really Backdoor Federated Learning?", 2019.
    """
    squares = 0.0
    values, before = np.empty(BLOCK_VALUES, np.float32), np.empty(BLOCK_VALUES, np.float32)
    for block in blocks_of(weights, learned):
        new, old = values[: len(block)], before[: len(block)]
        read_block(update.weights, block, new)
        read_block(weights, block, old)
        # Not a dot product: the order of BLAS's sums depends on the machine and its threads.
        squares += float(np.square(np.subtract(new, old, dtype=np.float64)).sum())
    if not np.isfinite(squares):
        raise Diverged(
            f"the update of device {update.device_id!r} has a value that is not a finite number"
        )
    norm = sqrt(squares)
    if norm <= longest:
        return update
    shortened = Moved(
        update.weights, origin=weights, to=weights, factor=longest / norm, names=learned
    )
    return replace(update, weights=shortened)


def _require_enough(arrived: Sequence[Update], settings: AggregationRecipe) -> None:
    if not arrived:
        raise Unavailable("no device delivered an update; the round can be tried again")
    if len(arrived) < settings.least_devices:
        raise WrongState(
            f"{len(arrived)} devices delivered an update, but aggregation.rule {settings.rule} "
            f"with these settings needs at least {settings.least_devices}; create a run with more "
            "devices, or with another rule"
        )


def _require_fit(
    update: Update, before: Sequence[Update], weights: Weights, names: Collection[str]
) -> None:
    """Refuse an update that is out of order or of another model; the error names the device."""
    what = f"the update of device {update.device_id!r}"
    if before and update.device_id <= before[-1].device_id:
        raise InvalidInput(
            f"{what} comes after that of {before[-1].device_id!r}; "
            "updates must come once per device, in device-id order"
        )
    wanted = set(names)
    missing, unexpected = wanted - update.weights.keys(), update.weights.keys() - wanted
    if missing or unexpected:
        raise InvalidInput(
            f"{what} is of another model: missing {sorted(missing)}, "
            f"unexpected {sorted(unexpected)}"
        )
    for name in names:
        shape, expected = shape_of(update.weights, name), shape_of(weights, name)
        if shape != expected:
            raise InvalidInput(
                f"{what} has {name!r} of shape {list(shape)}, the model {list(expected)}"
            )
