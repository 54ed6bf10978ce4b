"""Weights, updates and synthetic batches as safetensors bytes, and back.

Decoding checks everything that a sender controls before any arithmetic: names, types and shapes
must be exactly those expected. Encoding is deterministic: equal tensors give equal digests.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hfmds.algorithm.aggregation.blocks import blocks_of, read_block
from hfmds.algorithm.aggregation.compression import Packed, TensorForm
from hfmds.domain.learning import (
    MEASUREMENTS,
    LabelledImages,
    LazyTensors,
    SyntheticBatch,
    Weights,
)
from hfmds.errors import InvalidInput

_PIXEL_TYPES = ("U8", "F16")
_BATCH_TYPES = {"images": _PIXEL_TYPES, "labels": ("I64",), **dict.fromkeys(MEASUREMENTS, ("F32",))}
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("i1"),
}
_LENGTH_BYTES = 8  # a safetensors file begins with the length of its header
_CACHED_HEADER_BYTES, _CACHED_HEADERS = 1 << 14, 64
_MAX_NAMES, _MAX_NAME_CHARACTERS = 5, 100  # tensor names in an error
_VALUES_AT_ONCE = 1 << 18  # fewer, larger reads: each one lets other threads run
_MIXTURE_TYPES = {**_BATCH_TYPES, "shares": ("F32",)}


def encode_weights(weights: Weights) -> bytes:
    """Encode a model as one float32 tensor per name."""
    return save(
        {name: np.asarray(weights[name], np.float32, order="C") for name in sorted(weights)}
    )


def encode_update(packed: Packed) -> bytes:
    """Encode a packed update as one tensor per name."""
    return save({name: np.asarray(packed[name], order="C") for name in sorted(packed)})


def encode_batch(batch: SyntheticBatch) -> bytes:
    """Encode a batch as synthesis_store.proto describes it."""
    tensors: dict[str, NDArray[Any] | None] = {
        "images": batch.images.pixels,
        "labels": batch.images.labels,
        "shares": batch.images.shares,
        **batch.measurements,
    }
    return save({n: np.ascontiguousarray(t) for n, t in tensors.items() if t is not None})


@dataclass(frozen=True, slots=True)
class _TensorPlace:
    """The place of a tensor in its file."""

    kind: str  # the type, as safetensors names it
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The places of all tensors. safetensors has no gaps between tensors."""

    places: dict[str, _TensorPlace]
    start: int  # of the first value
    float32_values: int | None  # the number of values; None if some are not float32


_layouts: dict[tuple[bytes, int], _Layout] = {}  # by header and length of a file


class StoredTensors(LazyTensors):
    """Tensors in a file, read on demand, completely or in part, and not kept.

    The class reads and does not map: mapped pages count as memory of the process, and a coordinator
    has the updates of a cohort open. The file may be deleted while it is open.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._what = what
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        beginning = os.pread(self._file, _CACHED_HEADER_BYTES, 0)
        header_bytes = int.from_bytes(beginning[:_LENGTH_BYTES], "little")
        first = _LENGTH_BYTES + header_bytes
        # A file's validity depends only on its header and length, and a cohort shares these.
        key = (beginning[:first], os.fstat(self._file).st_size)
        layout = _layouts.get(key)
        if layout is None:
            _open(path, what)  # refuses a malformed file; below, the header is valid
            layout = _layout(os.pread(self._file, header_bytes, _LENGTH_BYTES), first)
            if first <= len(beginning):
                if len(_layouts) >= _CACHED_HEADERS:
                    _layouts.clear()
                _layouts[key] = layout
        self._layout = layout
        self._places = layout.places

    def __getitem__(self, name: str) -> NDArray[Any]:
        tensor = np.empty(self.shape(name), self.dtype(name))
        self.read(name, 0, tensor.reshape(-1))
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def dtype(self, name: str) -> np.dtype[Any]:
        kind = self._places[name].kind
        if kind not in _DTYPES:
            raise InvalidInput(f"{self._what}: tensor {name!r} is {kind}; no weights are")
        return _DTYPES[kind]

    def read(self, name: str, start: int, out: NDArray[Any]) -> None:
        offset = self._places[name].offset + start * out.itemsize
        remaining = out.view(np.uint8).data
        while remaining:
            count = os.preadv(self._file, [remaining], offset)
            if not count:
                raise InvalidInput(f"{self._what}: the file ends within tensor {name!r}")
            remaining, offset = remaining[count:], offset + count

    def have_finite_sum(self) -> bool:
        """Return whether all values are float32 and have a finite sum, so that each is finite.

        A sum of large finite values may overflow, so False proves nothing. The sum takes half the
        time of a check of each value, and lets other threads run.
        """
        count = self._layout.float32_values
        if count is None:
            return False
        values = np.frombuffer(self._mapped(), _DTYPES["F32"], count, self._layout.start)
        # np.sum would take as long as a check of each value.
        return math.isfinite(np.einsum("i->", values))

    def mapped(self) -> dict[str, NDArray[Any]]:
        """Return all tensors mapped, without copying; do not keep them."""
        pages = self._mapped()
        return {
            name: np.frombuffer(pages, self.dtype(name), math.prod(place.shape), place.offset)
            for name, place in self._places.items()
        }

    def _mapped(self) -> mmap.mmap:
        return mmap.mmap(self._file, 0, prot=mmap.PROT_READ)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor."""
        return {name: place.shape for name, place in self._places.items()}

    def require_form(self, forms: Mapping[str, TensorForm], what: str) -> None:
        """Raise InvalidInput unless names, types and shapes are those of the form."""
        missing, unwanted = sorted(forms.keys() - self.keys()), sorted(self.keys() - forms.keys())
        if missing or unwanted:
            problems = {"missing": missing, "not wanted": unwanted}
            listed = "; ".join(f"tensors {kind}: {_some(n)}" for kind, n in problems.items() if n)
            raise InvalidInput(
                f"{what}: {listed}; send those that the method trains in this round, in the "
                "recipe's compression"
            )
        for name, form in forms.items():
            kind = self._places[name].kind
            if _DTYPES.get(kind) != form.dtype:
                wanted = next(dtype for dtype in _DTYPES if _DTYPES[dtype] == form.dtype)
                raise InvalidInput(f"{what}: tensor {name!r} is {kind}, it must be {wanted}")
            if self.shape(name) != form.shape:
                raise InvalidInput(
                    f"{what}: tensor {name!r} has shape {list(self.shape(name))}, "
                    f"the model's has {list(form.shape)}"
                )


def _layout(header: bytes, first: int) -> _Layout:
    tensors = json.loads(header)
    tensors.pop("__metadata__", None)
    places = {
        name: _TensorPlace(
            tensors[name]["dtype"],
            tuple(tensors[name]["shape"]),
            first + tensors[name]["data_offsets"][0],
        )
        for name in sorted(tensors)
    }
    of_one_type = all(place.kind == "F32" for place in places.values())
    count = sum(math.prod(place.shape) for place in places.values())
    return _Layout(places, first, count if of_one_type else None)


class StoredWeights(StoredTensors):
    """Weights in a file, as float32 tensors."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path, what)
        for name, place in self._places.items():
            if place.kind != "F32":
                raise InvalidInput(f"{what}: tensor {name!r} is {place.kind}, it must be F32")


def require_finite_weights(weights: Weights, what: str) -> None:
    """Raise InvalidInput if a value is not finite."""
    if isinstance(weights, StoredTensors) and weights.have_finite_sum():
        return
    for name, values in _pieces(weights):
        if not np.isfinite(values).all():
            raise InvalidInput(f"{what}: tensor {name!r} has values that are not finite")


def _pieces(weights: Weights) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield all values in pieces, each with the name of its tensor."""
    if isinstance(weights, StoredTensors):
        for name, tensor in weights.mapped().items():
            for start in range(0, len(tensor), _VALUES_AT_ONCE):
                yield name, tensor[start : start + _VALUES_AT_ONCE]
        return
    for block in blocks_of(weights, list(weights), _VALUES_AT_ONCE):
        values = np.empty(len(block), np.float32)
        read_block(weights, block, values)
        yield block.name, values


def read_batch(path: Path, what: str, *, to_check: bool = False) -> SyntheticBatch:
    """Read a synthetic batch or shard from a file; `what` names it in errors.

    Ignores tensors that a later version may have added. With `to_check` it refuses them, and
    returns black images instead of uint8 ones: every uint8 pixel is valid.
    """
    tensors = _open(path, what)
    names = set(tensors.keys())
    types = _MIXTURE_TYPES if "shares" in names else _BATCH_TYPES
    if not types.keys() <= names or (to_check and names != types.keys()):
        raise InvalidInput(
            f"{what}: tensors are {sorted(names)}, they must be {sorted(_BATCH_TYPES)}, "
            "and 'shares' for mixtures"
        )
    for name, expected in types.items():
        dtype = tensors.get_slice(name).get_dtype()
        if dtype not in expected:
            raise InvalidInput(
                f"{what}: tensor {name!r} is {dtype}, it must be {' or '.join(expected)}"
            )
    try:
        arrays = {name: tensors.get_tensor(name) for name in types if name != "images"}
        images = tensors.get_slice("images")
        if to_check and images.get_dtype() == "U8":  # the largest part of a batch
            pixels: NDArray[Any] = np.broadcast_to(np.uint8(0), images.get_shape())
        else:
            pixels = tensors.get_tensor("images")
    except ValueError as error:  # an empty tensor can claim any shape
        raise InvalidInput(f"{what}: a tensor has a shape that no array has ({error})") from error
    batch = SyntheticBatch(
        LabelledImages(pixels, arrays["labels"], arrays.get("shares")),
        **{name: arrays[name] for name in MEASUREMENTS},
    )
    for name, values in batch.measurements.items():
        bad = np.flatnonzero(~np.isfinite(values)).tolist()
        if bad:
            raise InvalidInput(
                f"{what}: {name} is not finite in {len(bad)} of {len(batch)} samples: "
                f"{', '.join(map(str, bad[:_MAX_NAMES]))}{', ...' if bad[_MAX_NAMES:] else ''}"
            )
    return batch


def _some(names: list[str]) -> str:
    """Join a few names: the other side may have sent thousands."""
    shown = ", ".join(repr(name[:_MAX_NAME_CHARACTERS]) for name in names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown


def _open(path: Path, what: str) -> Any:
    try:
        return safe_open(path, framework="np")
    except SafetensorError as error:
        raise InvalidInput(f"{what}: not a safetensors file ({error})") from error
