"""D_syn: merges the synthetic batches of many devices into one pool. Only numpy.

Samples are in the order of device ids, and exact duplicates are kept once. So a pool depends on the
contributions and not on their order of arrival. A simulation merges by `merge`, the synthesis
store by `Merge`, batch by batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from hfmds.domain.learning import MEASUREMENTS, LabelledImages, SyntheticBatch
from hfmds.errors import InvalidInput


def content_hash(images: LabelledImages, index: int) -> str:
    """Hash one sample, as SHA-256 in hex: its label, shape, pixels and class shares."""
    pixels = images.pixels[index]
    header = f"{images.labels[index]}:{'x'.join(map(str, pixels.shape))}:".encode()
    shares = b"" if images.shares is None else images.shares[index].tobytes()
    return hashlib.sha256(header + pixels.tobytes() + shares).hexdigest()


class Merge:
    """Merges batches one at a time, in device-id order. Of equal samples the first stays."""

    def __init__(self) -> None:
        self.duplicates = 0
        self._seen: set[str] = set()

    @property
    def samples(self) -> int:
        """Number of samples kept so far."""
        return len(self._seen)

    def add(self, batch: SyntheticBatch) -> SyntheticBatch:
        """Return the batch's new samples: `batch` itself if all are new, possibly none."""
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
    """Merge batches by device id into one batch."""
    merging = Merge()
    return concatenate([merging.add(batches[device_id]) for device_id in sorted(batches)])


def concatenate(batches: Sequence[SyntheticBatch]) -> SyntheticBatch:
    """Concatenate batches as they are."""
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
