"""D_syn: many devices' synthetic batches as one. Only numpy: the store does the same merge.

The order is by device id and exact duplicates are kept once, so that the pool depends on what was
contributed and not on who was first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from hfmds.domain.learning import MEASUREMENTS, LabelledImages, SyntheticBatch
from hfmds.errors import InvalidInput


def content_hash(images: LabelledImages, index: int) -> str:
    """SHA-256 in hex of one sample: its label, its shape, its pixels and its class shares."""
    pixels = images.pixels[index]
    header = f"{images.labels[index]}:{'x'.join(map(str, pixels.shape))}:".encode()
    shares = b"" if images.shares is None else images.shares[index].tobytes()
    return hashlib.sha256(header + pixels.tobytes() + shares).hexdigest()


class Merge:
    """Takes batches in device-id order, one at a time; of equal samples the first stays."""

    def __init__(self) -> None:
        self.duplicates = 0
        self._seen: set[str] = set()

    @property
    def samples(self) -> int:
        """How many were kept so far."""
        return len(self._seen)

    def add(self, batch: SyntheticBatch) -> SyntheticBatch:
        """The samples of the batch that are new: `batch` itself if all are, maybe none."""
        fresh = [index for index in range(len(batch)) if self._is_first(batch, index)]
        self.duplicates += len(batch) - len(fresh)
        if len(fresh) == len(batch):
            return batch
        return batch.take(np.array(fresh, np.int64))

    def _is_first(self, batch: SyntheticBatch, index: int) -> bool:
        name = content_hash(batch.images, index)
        known = name in self._seen
        self._seen.add(name)
        return not known


def merge(batches: Mapping[str, SyntheticBatch]) -> SyntheticBatch:
    """All batches, by device id, as one."""
    merging = Merge()
    return concatenate([merging.add(batches[device_id]) for device_id in sorted(batches)])


def concatenate(batches: Sequence[SyntheticBatch]) -> SyntheticBatch:
    """Batches one behind the other, as they are."""
    if not batches:
        raise InvalidInput("there is no synthetic batch to make a pool of")
    shapes = {batch.images.pixels.shape[1:] for batch in batches}
    if len(shapes) > 1:
        raise InvalidInput(f"synthetic batches have images of different shapes: {sorted(shapes)}")
    types = {str(batch.images.pixels.dtype) for batch in batches}
    if len(types) > 1:
        raise InvalidInput(f"synthetic batches have pixels of different types: {sorted(types)}")
    shares = [batch.images.shares for batch in batches if batch.images.shares is not None]
    if shares and len(shares) < len(batches):
        raise InvalidInput("some synthetic batches have class shares and some have not")
    return SyntheticBatch(
        LabelledImages(
            np.concatenate([batch.images.pixels for batch in batches]),
            np.concatenate([batch.images.labels for batch in batches]),
            np.concatenate(shares) if shares else None,
        ),
        **{
            name: np.concatenate([batch.measurements[name] for batch in batches])
            for name in MEASUREMENTS
        },
    )
