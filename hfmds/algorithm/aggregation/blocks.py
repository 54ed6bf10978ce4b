"""Tensors in blocks: runs of values short enough to stay in the processor's cache. Only numpy.

What goes over many updates goes block by block, so that its memory depends neither on how many
there are nor on how large a tensor is; and in several threads, if blocks do not need each other.
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
# For a thread of its own: to read and add them takes it a millisecond, its start a tenth of that.
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
    """All values of these tensors, in blocks of at most so many."""
    for name in names:
        size = prod(shape_of(weights, name))
        for start in range(0, size, most):
            yield Block(name, start, min(start + most, size))


def shape_of(tensors: Mapping[str, NDArray[Any]], name: str) -> tuple[int, ...]:
    """A tensor's shape; of one that is stored, without reading it."""
    return tensors.shape(name) if isinstance(tensors, LazyTensors) else tensors[name].shape


def dtype_of(tensors: Mapping[str, NDArray[Any]], name: str) -> np.dtype[Any]:
    """The type of a tensor's values; of one that is stored, without reading them."""
    return tensors.dtype(name) if isinstance(tensors, LazyTensors) else tensors[name].dtype


def read_block(tensors: Mapping[str, NDArray[Any]], block: Block, out: NDArray[Any]) -> None:
    """Fill `out` with the values of a block."""
    if isinstance(tensors, LazyTensors):
        tensors.read(block.name, block.start, out)
    else:
        out[...] = tensors[block.name].reshape(-1)[block.start : block.stop]


def threads_for(values: int) -> int:
    """How many threads are worth it to read so many values."""
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        processors = os.cpu_count() or 1
    return max(1, min(processors, _MOST_THREADS, values // _LEAST_VALUES))


def in_threads(
    work: Callable[[Iterable[Block]], None], blocks: Sequence[Block], threads: int
) -> None:
    """Have the work done on all blocks, in so many threads: each takes the next when it is ready.

    If it fails, then with the error of the first block for which it does, as in one thread: they
    are begun in order, so nobody has stopped before that one.
    """
    left, begun = enumerate(blocks), [0] * threads
    failed: dict[int, BaseException] = {}  # by the block that was begun last

    def take(thread: int) -> Iterator[Block]:
        for begun[thread], block in left:
            yield block

    def do(thread: int) -> None:
        try:
            work(take(thread))
        except BaseException as error:  # noqa: BLE001  # it is raised below
            failed[begun[thread]] = error

    # The first of them is this one. A process that stops does not wait for the others, as it does
    # not for the run's thread that they work for.
    others = [Thread(target=do, args=(number,), daemon=True) for number in range(1, threads)]
    for other in others:
        other.start()
    do(0)
    for other in others:
        other.join()
    if failed:
        raise failed[min(failed)]


class Moved(LazyTensors):
    """Weights as if the device had begun elsewhere: to + factor * (weights - origin).

    Only of these names; the others are as they are.
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
    """New weights, written block by block."""

    def __init__(self, like: Weights, names: Collection[str]) -> None:
        self._like = like
        self._values = {n: np.empty(prod(shape_of(like, n)), np.float32) for n in names}

    def write(self, block: Block, values: NDArray[np.floating[Any]]) -> None:
        self._values[block.name][block.start : block.stop] = values

    def finish(self) -> Weights:
        """All weights; those that were not written are as before."""
        return {
            name: self._values[name].reshape(shape_of(self._like, name))
            if name in self._values
            else self._like[name]
            for name in self._like
        }
