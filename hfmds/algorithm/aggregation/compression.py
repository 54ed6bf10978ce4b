"""Updates in fewer bytes: a device sends its change from w^t in half or quarter precision.

    fp16   half-precision floats. Their error is at most 1/2048 of a value (and 3e-8 of the least
           ones), little beside what another order of the batches does; so it is not fed back, and
           a device has nothing to remember.
    int8   whole numbers from -127 to 127, times one scale per tensor, to nearest. What is lost,
           up to half a scale per value, is kept on the device and added to its next change (error
           feedback; Seide et al. 2014, Karimireddy et al. 2019), so that over rounds nothing is.
           Rounding to nearest and not at random: error feedback takes its bias away, and the
           error is half as large.

Tensors of few values, and those that are measured and not learned, are sent as they are, in
float32. The same on a simulated device and on a real one. Only numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.aggregation.blocks import Block, dtype_of, read_block, shape_of
from hfmds.algorithm.local_work import Memory, TrainedModel
from hfmds.domain.learning import LazyTensors, Weights
from hfmds.domain.recipe import Recipe
from hfmds.errors import Diverged

Packed: TypeAlias = Mapping[str, NDArray[Any]]
"""An update as it is sent: one array per weight, and for int8 its scale, under "scale/"."""

_SCALE = "scale/"
_RESIDUAL = "residual/"
_LEAST_VALUES = 256  # smaller tensors are not worth an error
_LEVELS = 127
_DTYPES: dict[str, np.dtype[Any]] = {"fp16": np.dtype(np.float16), "int8": np.dtype(np.int8)}
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a tensor of an update must be."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def packed_form(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorForm]:
    """What an update that changes weights of these shapes has, and must have."""
    forms: dict[str, TensorForm] = {}
    for name, shape in shapes.items():
        dtype = _dtype_of(recipe, name, shape)
        forms[name] = TensorForm(dtype, shape)
        if dtype == np.int8:
            forms[_SCALE + name] = TensorForm(_FLOAT32, ())
    return forms


def _dtype_of(recipe: Recipe, name: str, shape: tuple[int, ...]) -> np.dtype[Any]:
    if math.prod(shape) < _LEAST_VALUES or recipe.method.measures(name):
        return _FLOAT32
    return _DTYPES.get(recipe.compression, _FLOAT32)


# --- on a device --------------------------------------------------------------------------------


def split_memory(memory: Memory) -> tuple[Memory, Memory]:
    """What a device remembers of its last training: for the method, and what was not sent."""
    residual = {n: array for n, array in memory.items() if n.startswith(_RESIDUAL)}
    if not residual:
        return memory, {}
    return {n: array for n, array in memory.items() if n not in residual}, residual


def pack(
    recipe: Recipe, weights: Weights, trained: TrainedModel, residual: Memory
) -> tuple[Packed, Memory]:
    """The update to send, and what the device remembers until its next training.

    `weights` is w^t, and `residual` what its last training left. Should an update not count,
    because it came too late, what it carried is lost, as without compression; only what it did not
    carry is sent later.
    """
    packed: dict[str, NDArray[Any]] = {}
    left: dict[str, NDArray[np.float32]] = {}
    for name, array in trained.weights.items():
        dtype = _dtype_of(recipe, name, array.shape)
        if dtype == _FLOAT32:
            packed[name] = array
            continue
        change = array - weights[name]
        if dtype == np.float16:
            with np.errstate(over="ignore"):  # it is looked for here
                packed[name] = change.astype(np.float16)
            _require_finite(name, packed[name])
            continue
        if _RESIDUAL + name in residual:  # not in its first round, nor when the GAN's turn is over
            change += residual[_RESIDUAL + name]
        scale = np.abs(change).max() / np.float32(_LEVELS)
        _require_finite(name, scale)
        # Also 0 where nothing changed, or too little for a scale.
        levels = np.rint(change / scale) if scale > 0 else np.zeros_like(change)
        packed[name] = np.clip(levels, -_LEVELS, _LEVELS).astype(np.int8)
        packed[_SCALE + name] = np.asarray(scale, np.float32)
        left[_RESIDUAL + name] = change - packed[name] * scale
    return packed, {**trained.memory, **left} if left else trained.memory


def _require_finite(name: str, values: NDArray[Any] | np.float32) -> None:
    if not np.isfinite(values).all():
        raise Diverged(
            f"training diverged: the change of {name!r} has values too large to send, or not "
            "finite; lower training.learning_rate"
        )


# --- on the server ------------------------------------------------------------------------------


def unpacked(recipe: Recipe, packed: Packed, weights: Weights) -> Weights:
    """The weights that an update stands for; `weights` is w^t, at which its device began."""
    return packed if recipe.compression == "none" else UnpackedWeights(packed, weights)


class UnpackedWeights(LazyTensors):
    """w^t + the change that a device sent, decoded as it is read."""

    def __init__(self, packed: Packed, weights: Weights) -> None:
        self._packed = packed
        self._weights = weights
        self._names = tuple(name for name in packed if not name.startswith(_SCALE))
        self._scales = {
            name: np.float32(packed[_SCALE + name])
            for name in self._names
            if _SCALE + name in packed
        }

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name not in self._names:
            raise KeyError(name)
        out = np.empty(self.shape(name), np.float32)
        self.read(name, 0, out.reshape(-1))
        return out

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_of(self._packed, name)

    def dtype(self, name: str) -> np.dtype[Any]:
        return _FLOAT32

    def read(self, name: str, start: int, out: NDArray[Any]) -> None:
        block = Block(name, start, start + len(out))
        dtype = dtype_of(self._packed, name)
        if dtype == _FLOAT32:
            read_block(self._packed, block, out)
            return
        change = np.empty(len(out), dtype)
        read_block(self._packed, block, change)
        read_block(self._weights, block, out)
        # In float32, as on the device, which keeps what is left of exactly this.
        with np.errstate(over="ignore", invalid="ignore"):  # of scales that nobody has checked yet
            out += change * self._scales[name] if name in self._scales else change
