"""Reads tensors in blocks: runs of values that fit in the processor's cache. Only numpy.

Aggregation reads many updates block by block. Its memory then depends neither on the number of
updates nor on the size of a tensor, and several threads can share the blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import LazyTensors, Weights

BLOCK_VALUES = 1 << 15  # 128 KiB of float32, and 256 KiB of the float64 they are summed in
_MOST_THREADS = 4
# Fewest values for one more thread: reading them takes 1 ms, starting the thread 0.1 ms.
_LEAST_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """The values of one tensor from `start` up to `stop`, in C order."""

    name: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def blocks_of(
    weights: Weights, names: Collection[str], most: int = BLOCK_VALUES
) -> Iterator[Block]:
    """Yield all values of these tensors in blocks of at most `most` values."""
    for name in names:
        size = prod(shape_of(weights, name))
        for start in range(0, size, most):
            yield Block(name, start, min(start + most, size))


def shape_of(tensors: Mapping[str, NDArray[Any]], name: str) -> tuple[int, ...]:
    """Return a tensor's shape without reading stored tensors."""
    return tensors.shape(name) if isinstance(tensors, LazyTensors) else tensors[name].shape


def dtype_of(tensors: Mapping[str, NDArray[Any]], name: str) -> np.dtype[Any]:
    """Return the type of a tensor's values without reading stored tensors."""
    return tensors.dtype(name) if isinstance(tensors, LazyTensors) else tensors[name].dtype


def read_block(tensors: Mapping[str, NDArray[Any]], block: Block, out: NDArray[Any]) -> None:
    """Fill `out` with the values of a block."""
    if isinstance(tensors, LazyTensors):
        tensors.read(block.name, block.start, out)
    else:
        out[...] = tensors[block.name].reshape(-1)[block.start : block.stop]


def threads_for(values: int) -> int:
    """Return the number of threads that pay off for reading this many values."""
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # Linux only
        processors = os.cpu_count() or 1
    return max(1, min(processors, _MOST_THREADS, values // _LEAST_VALUES))


def in_threads(
    work: Callable[[Iterable[Block]], None], blocks: Sequence[Block], threads: int
) -> None:
    """Run `work` in several threads; each thread takes the next block when it is ready.

    If blocks fail, this raises the error of the first of them, as a single thread would. Threads
    take blocks in order, so every block before that one was processed.
    """
    numbered_blocks, current = enumerate(blocks), [0] * threads
    errors: dict[int, BaseException] = {}  # by the number of the block

    def take(thread: int) -> Iterator[Block]:
        for current[thread], block in numbered_blocks:
            yield block

    def do(thread: int) -> None:
        try:
            work(take(thread))
        except BaseException as error:  # noqa: BLE001  # raised below
            errors[current[thread]] = error

    # This thread is the first. The others are daemons: a process that stops does not wait for them.
    others = [Thread(target=do, args=(number,), daemon=True) for number in range(1, threads)]
    for other in others:
        other.start()
    do(0)
    for other in others:
        other.join()
    if errors:
        raise errors[min(errors)]


class Moved(LazyTensors):
    """Weights as if the device had started elsewhere: to + factor * (weights - origin).

    This applies to the weights in `names`. Other weights stay as they are.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        origin: Weights,
        to: Weights,
        factor: float,
        names: Collection[str],
    ) -> None:
        self._weights, self._origin, self._to = weights, origin, to
        self._factor = np.float32(factor)
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        out = np.empty(self.shape(name), np.float32)
        self.read(name, 0, out.reshape(-1))
        return out

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_of(self._weights, name)

    def dtype(self, name: str) -> np.dtype[Any]:
        return dtype_of(self._weights, name)

    def read(self, name: str, start: int, out: NDArray[Any]) -> None:
        block = Block(name, start, start + len(out))
        read_block(self._weights, block, out)
        if name in self._names:
            other = np.empty_like(out)
            read_block(self._origin, block, other)
            out -= other
            out *= self._factor
            if self._to is not self._origin:
                read_block(self._to, block, other)
            out += other


class Draft:
    """New weights that are written block by block."""

    def __init__(self, like: Weights, names: Collection[str]) -> None:
        self._like = like
        self._values = {n: np.empty(prod(shape_of(like, n)), np.float32) for n in names}

    def write(self, block: Block, values: NDArray[np.floating[Any]]) -> None:
        """Set the values of a block."""
        self._values[block.name][block.start : block.stop] = values

    def finish(self) -> Weights:
        """Return all weights. Weights that were not written are those of `like`."""
        return {
            name: self._values[name].reshape(shape_of(self._like, name))
            if name in self._values
            else self._like[name]
            for name in self._like
        }
