"""Compresses updates: a device sends its change from w^t in half or quarter precision. Only numpy.

    fp16   half-precision floats. The error is at most 1/2048 of a value, or 3e-8 for the smallest
           values. Another order of the batches changes more, so there is no error feedback, and a
           device keeps nothing.
    int8   integers from -127 to 127 times one scale per tensor, rounded to nearest. The device
           keeps the rounding error, up to half a scale per value, and adds it to its next change
           (error feedback; Seide et al. 2014, Karimireddy et al. 2019). Nothing is lost over
           rounds. Random rounding would have twice the error. Error feedback removes the bias of
           rounding to nearest.

Small tensors, and tensors that are measured and not learned, stay in float32. Simulated and real
devices use the same code.
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
"""An update as devices send it: one array per weight, and for int8 its scale under "scale/"."""

_SCALE = "scale/"
_RESIDUAL = "residual/"
_LEAST_VALUES = 256  # smaller tensors stay exact: compressing them saves nothing
_LEVELS = 127
_DTYPES: dict[str, np.dtype[Any]] = {"fp16": np.dtype(np.float16), "int8": np.dtype(np.int8)}
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The type and shape that a tensor of an update must have."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the tensor's values."""
        return self.dtype.itemsize * math.prod(self.shape)


def packed_form(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorForm]:
    """Describe the tensors of an update for weights of these shapes."""
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
    """Split the memory of a training into the method's part and the rounding errors."""
    residual = {n: array for n, array in memory.items() if n.startswith(_RESIDUAL)}
    if not residual:
        return memory, {}
    return {n: array for n, array in memory.items() if n not in residual}, residual


def pack(
    recipe: Recipe, weights: Weights, trained: TrainedModel, residual: Memory
) -> tuple[Packed, Memory]:
    """Return the update to send, and the memory that the device keeps until its next training.

    `weights` is w^t, and `residual` holds the rounding errors of the last update. An update that
    comes too late is lost, as without compression. The next one carries only its rounding errors.
    """
    packed: dict[str, NDArray[Any]] = {}
    kept_errors: dict[str, NDArray[np.float32]] = {}
    for name, array in trained.weights.items():
        dtype = _dtype_of(recipe, name, array.shape)
        if dtype == _FLOAT32:
            packed[name] = array
            continue
        change = array - weights[name]
        if dtype == np.float16:
            with np.errstate(over="ignore"):  # refused in the next line but one
                packed[name] = change.astype(np.float16)
            _require_finite(name, packed[name])
            continue
        if _RESIDUAL + name in residual:  # none in a weight's first round
            change += residual[_RESIDUAL + name]
        scale = np.abs(change).max() / np.float32(_LEVELS)
        _require_finite(name, scale)
        # The scale is 0 if nothing changed, or too little.
        levels = np.rint(change / scale) if scale > 0 else np.zeros_like(change)
        packed[name] = np.clip(levels, -_LEVELS, _LEVELS).astype(np.int8)
        packed[_SCALE + name] = np.asarray(scale, np.float32)
        kept_errors[_RESIDUAL + name] = change - packed[name] * scale
    return packed, {**trained.memory, **kept_errors} if kept_errors else trained.memory


def _require_finite(name: str, values: NDArray[Any] | np.float32) -> None:
    if not np.isfinite(values).all():
        raise Diverged(
            f"training diverged: the change of {name!r} has values that are too large to send or "
            "not finite; lower training.learning_rate"
        )


# --- on the server ------------------------------------------------------------------------------


def unpacked(recipe: Recipe, packed: Packed, weights: Weights) -> Weights:
    """Decode an update to weights; `weights` is w^t, where the device started."""
    return packed if recipe.compression == "none" else UnpackedWeights(packed, weights)


class UnpackedWeights(LazyTensors):
    """w^t + the change that a device sent, decoded block by block when it is read."""

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
        # In float32, as on the device: its rounding error must be that of this very product.
        with np.errstate(over="ignore", invalid="ignore"):  # scales are checked later
            out += change * self._scales[name] if name in self._scales else change
