"""Weights and synthetic batches as safetensors bytes, and back.

Decoding checks everything a sender controls before it reaches any arithmetic: the names, types and
shapes must be exactly those expected. Encoding is deterministic: equal tensors give equal bytes,
hence equal digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hfmds.algorithm.types import LabelledImages, SyntheticBatch, Weights
from hfmds.errors import InvalidInput

_BATCH_TYPES = {"images": "U8", "labels": "I64", "psnr_paired": "F32", "psnr_nearest": "F32"}
_MAX_NAMES, _MAX_NAME_CHARACTERS = 5, 100  # of tensors, in an error
_MIXTURE_TYPES = {**_BATCH_TYPES, "shares": "F32"}


def encode_weights(weights: Weights) -> bytes:
    """The model as one float32 tensor per name."""
    return save(
        {name: np.asarray(weights[name], np.float32, order="C") for name in sorted(weights)}
    )


def encode_batch(batch: SyntheticBatch) -> bytes:
    """The batch as the contract lays it out (synthesis_store.proto)."""
    tensors: dict[str, NDArray[Any] | None] = {
        "images": batch.images.pixels,
        "labels": batch.images.labels,
        "psnr_paired": batch.psnr_paired,
        "psnr_nearest": batch.psnr_nearest,
        "shares": batch.images.shares,
    }
    return save({n: np.ascontiguousarray(t) for n, t in tensors.items() if t is not None})


class StoredWeights(Mapping[str, NDArray[np.float32]]):
    """Weights in a file, memory-mapped: a tensor is read when it is asked for, then forgotten."""

    def __init__(self, path: Path, what: str) -> None:
        self._tensors = _open(path, what)
        self._names: tuple[str, ...] = tuple(sorted(self._tensors.keys()))
        for name in self._names:
            dtype = self._tensors.get_slice(name).get_dtype()
            if dtype != "F32":
                raise InvalidInput(f"{what}: tensor {name!r} is {dtype}, it must be F32")

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name not in self._names:
            raise KeyError(name)
        tensor: NDArray[np.float32] = self._tensors.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape by name, from the header alone."""
        return {name: tuple(self._tensors.get_slice(name).get_shape()) for name in self._names}

    def require_like(self, shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
        """Refuse weights that are not those wanted: other names, shapes, or not finite."""
        ours = self.shapes()
        if ours.keys() != shapes.keys():
            problems = {
                "missing": sorted(shapes.keys() - ours.keys()),
                "not wanted": sorted(ours.keys() - shapes.keys()),
            }
            told = "; ".join(f"tensors {kind}: {_some(n)}" for kind, n in problems.items() if n)
            raise InvalidInput(f"{what}: {told}; send those that the method trains in this round")
        for name, shape in ours.items():
            if shape != shapes[name]:
                raise InvalidInput(
                    f"{what}: tensor {name!r} has shape {list(shape)}, "
                    f"the model's has {list(shapes[name])}"
                )
            if not np.isfinite(self[name]).all():
                raise InvalidInput(f"{what}: tensor {name!r} has values that are not finite")


def read_batch(path: Path, what: str, *, only_known: bool = False) -> SyntheticBatch:
    """A synthetic batch or shard from a file; `what` names it in errors.

    Tensors that a later version may have added are ignored, or refused if `only_known`.
    """
    tensors = _open(path, what)
    names = set(tensors.keys())
    types = _MIXTURE_TYPES if "shares" in names else _BATCH_TYPES
    if not types.keys() <= names or (only_known and names != types.keys()):
        raise InvalidInput(
            f"{what}: tensors are {sorted(names)}, they must be {sorted(_BATCH_TYPES)}, "
            "and 'shares' for mixtures"
        )
    for name, expected in types.items():
        dtype = tensors.get_slice(name).get_dtype()
        if dtype != expected:
            raise InvalidInput(f"{what}: tensor {name!r} is {dtype}, it must be {expected}")
    shares = tensors.get_tensor("shares") if "shares" in names else None
    batch = SyntheticBatch(
        LabelledImages(tensors.get_tensor("images"), tensors.get_tensor("labels"), shares),
        tensors.get_tensor("psnr_paired"),
        tensors.get_tensor("psnr_nearest"),
    )
    if not (np.isfinite(batch.psnr_paired).all() and np.isfinite(batch.psnr_nearest).all()):
        raise InvalidInput(f"{what}: a PSNR value is not finite")
    return batch


def _some(names: list[str]) -> str:
    """A few of them: the other side may have sent thousands."""
    shown = ", ".join(repr(name[:_MAX_NAME_CHARACTERS]) for name in names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown


def _open(path: Path, what: str) -> Any:
    try:
        return safe_open(path, framework="np")
    except SafetensorError as error:
        raise InvalidInput(f"{what}: not a safetensors file ({error})") from error
