"""Tasks and results between processes: arrays in mapped files, the rest in small values.

Through a pipe a model's weights would take many times as long. A thing that many tasks share, such
as the global weights or the pool, is written once. Files are written over where one is at hand:
finding and zeroing the pages of a new one takes ten times as long.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.local_work import LocalWork, TrainedModel
from hfmds.domain.learning import LabelledImages

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Layout: TypeAlias = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""Of arrays in a file, one behind the other: name, dtype, shape, offset."""

_ALIGNMENT = 64  # bytes; what vector instructions like best


@dataclass(frozen=True, slots=True)
class Stored:
    """Arrays in a file."""

    path: Path
    layout: Layout

    def mapped(self) -> dict[str, NDArray[Any]]:
        """The arrays, read as they are touched; writing to them does not reach the file."""
        with self.path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return {
            name: np.ndarray(shape, dtype, memory, offset)
            for name, dtype, shape, offset in self.layout
        }


def store(path: Path, arrays: Arrays) -> Stored:
    """Write arrays to a file, over what it held."""
    layout, size = layout_of(arrays)
    path.touch()
    with path.open("r+b") as file:
        file.truncate(size)
        for name, _, _, offset in layout:
            file.seek(offset)
            file.write(np.asarray(arrays[name], order="C").data)  # a scalar stays one
    return Stored(path, layout)


def layout_of(arrays: Arrays) -> tuple[Layout, int]:
    """Where arrays lie in a file, and its size."""
    layout, offset = [], 0
    for name, array in arrays.items():
        layout.append((name, array.dtype.str, array.shape, offset))
        offset += math.ceil(array.nbytes / _ALIGNMENT) * _ALIGNMENT
    return tuple(layout), max(offset, _ALIGNMENT)  # an empty file cannot be mapped


@dataclass(frozen=True, slots=True)
class Parcel:
    """A `LocalWork` whose arrays are in files."""

    rest: LocalWork
    weights: Stored
    memory: Stored | None
    shard: Stored
    pool: Stored | None

    def open(self) -> LocalWork:
        """The task, for a worker."""
        return replace(
            self.rest,
            weights=self.weights.mapped(),
            memory=self.memory.mapped() if self.memory else {},
            shard=LabelledImages(**self.shard.mapped()),
            pool=LabelledImages(**self.pool.mapped()) if self.pool else None,
        )


class Shelf:
    """Files of what tasks share: each thing is written once, and kept while phases use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0
        # By id of the thing, which is kept, so that the id stays its own.
        self._used: dict[int, tuple[object, Stored]] = {}
        self._used_before: dict[int, tuple[object, Stored]] = {}
        self._to_write_over: dict[Layout, list[Path]] = {}

    def begin_phase(self) -> None:
        """Forget what neither this phase nor the one before has used."""
        for path in itertools.chain.from_iterable(self._to_write_over.values()):
            path.unlink()
        self._to_write_over = {}
        for key, (_, stored) in self._used_before.items():
            if key not in self._used:
                self._to_write_over.setdefault(stored.layout, []).append(stored.path)
        self._used_before, self._used = self._used, {}

    def place(self, work: LocalWork) -> Parcel:
        """The task, its arrays on the shelf."""
        empty = LabelledImages(work.shard.pixels[:1], work.shard.labels[:1])
        return Parcel(
            replace(work, weights={}, memory={}, residual={}, shard=empty, pool=None),
            weights=self._stored(work.weights, work.weights),
            memory=self._stored(work.memory, work.memory) if work.memory else None,
            shard=self._stored(work.shard, _arrays_of(work.shard)),
            pool=self._stored(work.pool, _arrays_of(work.pool)) if work.pool else None,
        )

    def _stored(self, thing: object, arrays: Arrays) -> Stored:
        key = id(thing)
        if key not in self._used:
            self._used[key] = self._used_before.get(key) or (thing, self._write(arrays))
        return self._used[key][1]

    def _write(self, arrays: Arrays) -> Stored:
        self._written += 1
        path = self._folder / f"shared-{self._written}"
        if forgotten := self._to_write_over.get(layout_of(arrays)[0]):
            forgotten.pop().rename(path)
        return store(path, arrays)


def _arrays_of(images: LabelledImages) -> Arrays:
    arrays: dict[str, NDArray[Any]] = {"pixels": images.pixels, "labels": images.labels}
    return arrays if images.shares is None else {**arrays, "shares": images.shares}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A trained model whose weights are on the worker's desk."""

    rest: TrainedModel
    weights: Stored
    remembers_weights: bool  # as MOON does: then its memory need not travel beside them

    def collect(self) -> TrainedModel:
        """The trained model, copied off the desk."""
        weights = {name: np.array(array) for name, array in self.weights.mapped().items()}
        memory = weights if self.remembers_weights else self.rest.memory
        return replace(self.rest, weights=weights, memory=memory)


class Desk:
    """Where a worker puts trained models: each may lie there until the next but one is delivered.

    So the worker can go on with its next task while the last result is collected.
    """

    def __init__(self, path: Path) -> None:
        self._places = itertools.cycle([path.with_suffix(".1"), path.with_suffix(".2")])

    def deliver(self, trained: TrainedModel) -> Delivery:
        """Put a trained model on the desk."""
        same = trained.memory is trained.weights
        rest = replace(trained, weights={}, memory={} if same else trained.memory)
        return Delivery(rest, store(next(self._places), trained.weights), same)
