"""Rules that combine many updates into one: the mean, and rules that tolerate hostile updates.

Updates come in device-id order. A rule reads them block by block. It needs the memory of one model
and, in each thread, of one block of each update. The bits of the result depend neither on the fleet
nor on the number of threads. docs/aggregation.md has formulas, and how many hostile devices each
rule tolerates. Only numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.aggregation.blocks import (
    BLOCK_VALUES,
    Block,
    Draft,
    blocks_of,
    in_threads,
    read_block,
    threads_for,
)
from hfmds.domain.learning import Update, Weights
from hfmds.domain.recipe import AggregationRecipe
from hfmds.errors import Diverged, InvalidInput

# Values of an update that are summed at once. With fewer, threads wait for each other, because each
# read and each addition releases the interpreter's lock.
_SUMMED_VALUES = 1 << 17
_STACK_VALUES = 1 << 19  # 2 MiB: a block of every update


def _in_threads(
    work: Callable[[Iterable[Block]], None], blocks: Sequence[Block], updates: Sequence[Update]
) -> None:
    in_threads(work, blocks, threads_for(len(updates) * sum(map(len, blocks))))


# --- the mean -----------------------------------------------------------------------------------


def mean(
    updates: Sequence[Update], like: Weights, names: Collection[str], weighting: str = "uniform"
) -> Weights:
    """Compute the mean of a sequence of updates, summed in float64."""
    shares = [_share(update, weighting) for update in updates]
    draft = Draft(like, names)

    def average(blocks: Iterable[Block]) -> None:
        sums, buffer = np.empty(_SUMMED_VALUES), np.empty(_SUMMED_VALUES, np.float32)
        for block in blocks:
            total, values = sums[: len(block)], buffer[: len(block)]
            total.fill(0)
            with np.errstate(invalid="ignore"):  # infinities are refused below
                for update, share in zip(updates, shares, strict=True):
                    read_block(update.weights, block, values)
                    _add(total, values, share)
            # The sum is finite if and only if all updates are: float32 values cannot overflow it.
            if not np.isfinite(total).all():
                _refuse_not_finite(updates, block)
            total /= sum(shares)
            draft.write(block, total)

    _in_threads(average, list(blocks_of(like, names, _SUMMED_VALUES)), updates)
    return draft.finish()


def streamed_mean(
    updates: Iterable[Update], like: Weights, names: Collection[str], weighting: str = "uniform"
) -> Weights:
    """Compute the same mean, to the bit, from an iterator. The sums take the size of two models."""
    blocks = list(blocks_of(like, names))
    sums = [np.zeros(len(block)) for block in blocks]
    buffer, shares = np.empty(BLOCK_VALUES, np.float32), 0
    for update in updates:
        share = _share(update, weighting)
        for total, block in zip(sums, blocks, strict=True):
            values = buffer[: len(block)]
            read_block(update.weights, block, values)
            if not np.isfinite(values).all():
                _refuse_not_finite([update], block)
            _add(total, values, share)
        shares += share
        del update  # frees it before the next one is made
    draft = Draft(like, names)
    for total, block in zip(sums, blocks, strict=True):
        total /= max(shares, 1)  # the caller refuses a round without updates
        draft.write(block, total)
    return draft.finish()


def _share(update: Update, weighting: str) -> int:
    if weighting == "uniform":
        return 1
    if update.samples < 1:
        raise InvalidInput(
            f"device {update.device_id!r} reports {update.samples} samples; with "
            "aggregation.weighting samples it must have at least 1"
        )
    return update.samples


def _add(total: NDArray[np.float64], values: NDArray[np.float32], share: int) -> None:
    total += values if share == 1 else np.multiply(values, share, dtype=np.float64)


def _refuse_not_finite(updates: Iterable[Update], block: Block) -> None:
    values = np.empty(len(block), np.float32)
    for update in updates:
        read_block(update.weights, block, values)
        if not np.isfinite(values).all():
            raise Diverged(
                f"the update of device {update.device_id!r} has a value in {block.name!r} "
                "that is not a finite number"
            )


# --- value by value -----------------------------------------------------------------------------


def median(updates: Sequence[Update], like: Weights, names: Collection[str]) -> Weights:
    """Take the median of every value over devices; of an even number, the mean of the middle two.

    Yin et al., "Byzantine-Robust Distributed Learning", 2018.
    """
    ends = (len(updates) - 1) // 2
    return _middle(updates, like, names, ends)


def trimmed_mean(
    updates: Sequence[Update], like: Weights, names: Collection[str], fraction: float
) -> Weights:
    """Take the mean of every value over devices without the lowest and highest floor(fraction * n).

    Yin et al., 2018.
    """
    # Rounded first because in floats 0.29 * 100 is below 29.
    return _middle(updates, like, names, int(round(fraction * len(updates), 9)))


def _middle(updates: Sequence[Update], like: Weights, names: Collection[str], ends: int) -> Weights:
    """Take the mean of every value over devices without the `ends` lowest and highest."""
    draft = Draft(like, names)
    kept = len(updates) - 2 * ends
    most = _stacked_values(updates)

    def combine(blocks: Iterable[Block]) -> None:
        buffer = np.empty((len(updates), most), np.float32)
        for block in blocks:
            # One row per value: sorting rows is several times as fast as sorting columns.
            ordered = _stack(updates, block, buffer).T.copy()
            ordered.sort(axis=1)
            middle = ordered[:, ends : ends + kept].sum(axis=1, dtype=np.float64)
            draft.write(block, middle / kept)

    _in_threads(combine, list(blocks_of(like, names, most)), updates)
    return draft.finish()


def _stacked_values(updates: Sequence[Update]) -> int:
    """Return the size of blocks of which one of every update is in memory."""
    return max(1, min(BLOCK_VALUES, _STACK_VALUES // len(updates)))


def _stack(
    updates: Sequence[Update], block: Block, buffer: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Read a block of all updates into `buffer`, one row per update."""
    stack = buffer[:, : len(block)]
    for row, update in zip(stack, updates, strict=True):
        read_block(update.weights, block, row)
    if not np.isfinite(stack).all():
        _refuse_not_finite(updates, block)
    return stack


# --- device by device ---------------------------------------------------------------------------


def multi_krum(
    updates: Sequence[Update], like: Weights, learned: Collection[str], settings: AggregationRecipe
) -> list[Update]:
    """Choose the m updates that are nearest to their neighbours, in device-id order.

    Blanchard et al., "Machine Learning with Adversaries", 2017. An update's score is the sum of its
    squared distances to the n - f - 2 nearest others. The rule keeps the m lowest scores. The
    default is m = n - f, as in their experiments.
    """
    count, hostile = len(updates), settings.hostile_devices
    distances = squared_distances(updates, like, learned)
    np.fill_diagonal(distances, np.inf)  # an update is no neighbour of itself
    nearest = np.sort(distances, axis=1)[:, : count - hostile - 2]
    kept = settings.kept_devices or count - hostile
    # The sort is stable: of equal scores, the first device's counts as lower.
    chosen = np.argsort(nearest.sum(axis=1), kind="stable")[:kept]
    return [updates[index] for index in sorted(chosen)]


def squared_distances(
    updates: Sequence[Update], like: Weights, names: Collection[str]
) -> NDArray[np.float64]:
    """Compute |w_i - w_j|^2 for every two updates."""
    products = np.zeros((len(updates), len(updates)))
    most = _stacked_values(updates)
    buffer = np.empty((len(updates), most), np.float32)
    for block in blocks_of(like, names, most):  # always in this order, for equal bits
        # |a - b|^2 = a.a + b.b - 2 a.b, of changes and not of weights. Weights are nearly equal on
        # all devices, so rounding would swallow the difference.
        before = np.empty(len(block), np.float32)
        read_block(like, block, before)
        changes = np.subtract(_stack(updates, block, buffer), before, dtype=np.float64)
        products += changes @ changes.T
    own = products.diagonal()
    return np.maximum(own[:, None] + own[None, :] - 2 * products, 0)
