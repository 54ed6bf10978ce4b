"""Tasks and results between processes: arrays in mapped files, the rest in small values.

Through a pipe a model's weights would take many times as long. A thing that many tasks share, such
as the global weights or the pool, is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.engine import LocalWork, TrainedModel
from hfmds.algorithm.types import LabelledImages

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

_ALIGNMENT = 64  # bytes; what vector instructions like best


@dataclass(frozen=True, slots=True)
class Stored:
    """Arrays in a file, one behind the other."""

    path: Path
    layout: tuple[tuple[str, str, tuple[int, ...], int], ...]  # name, dtype, shape, offset

    def mapped(self) -> dict[str, NDArray[Any]]:
        """The arrays, read as they are touched; writing to them does not reach the file."""
        return {
            name: np.memmap(self.path, dtype, "c", offset, shape)
            if np.prod(shape)
            else np.empty(shape, dtype)
            for name, dtype, shape, offset in self.layout
        }


def store(path: Path, arrays: Arrays) -> Stored:
    """Write arrays to a file, in place of what it held."""
    layout = []
    with path.open("wb") as file:
        for name in arrays:
            array = np.asarray(arrays[name], order="C")  # a scalar stays one
            file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
            layout.append((name, array.dtype.str, array.shape, file.tell()))
            file.write(array.data)
    return Stored(path, tuple(layout))


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

    def begin_phase(self) -> None:
        """Forget what neither this phase nor the one before has used."""
        for key, (_, stored) in self._used_before.items():
            if key not in self._used:
                stored.path.unlink()
        self._used_before, self._used = self._used, {}

    def place(self, work: LocalWork) -> Parcel:
        """The task, its arrays on the shelf."""
        empty = LabelledImages(work.shard.pixels[:1], work.shard.labels[:1])
        return Parcel(
            replace(work, weights={}, memory={}, shard=empty, pool=None),
            weights=self._stored(work.weights, work.weights),
            memory=self._stored(work.memory, work.memory) if work.memory else None,
            shard=self._stored(work.shard, _arrays_of(work.shard)),
            pool=self._stored(work.pool, _arrays_of(work.pool)) if work.pool else None,
        )

    def _stored(self, thing: object, arrays: Arrays) -> Stored:
        key = id(thing)
        if key not in self._used:
            kept = self._used_before.get(key)
            if kept is None:
                self._written += 1
                kept = thing, store(self._folder / f"shared-{self._written}", arrays)
            self._used[key] = kept
        return self._used[key][1]


def _arrays_of(images: LabelledImages) -> Arrays:
    arrays: dict[str, NDArray[Any]] = {"pixels": images.pixels, "labels": images.labels}
    return arrays if images.shares is None else {**arrays, "shares": images.shares}


@dataclass(frozen=True, slots=True)
class Delivery:
    """A trained model whose weights are on the worker's desk, until its next task."""

    rest: TrainedModel
    weights: Stored
    remembers_weights: bool  # as MOON does: then its memory need not travel beside them

    def collect(self) -> TrainedModel:
        """The trained model, copied off the desk."""
        weights = {name: np.array(array) for name, array in self.weights.mapped().items()}
        memory = weights if self.remembers_weights else self.rest.memory
        return replace(self.rest, weights=weights, memory=memory)


def deliver(trained: TrainedModel, desk: Path) -> Delivery:
    """Put a trained model on the desk."""
    same = trained.memory is trained.weights
    rest = replace(trained, weights={}, memory={} if same else trained.memory)
    return Delivery(rest, store(desk, trained.weights), same)
