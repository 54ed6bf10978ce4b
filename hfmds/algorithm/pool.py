"""D_syn: many devices' synthetic batches as one. Only numpy: the store does the same merge.

The order is by device id and exact duplicates are kept once, so that the pool depends on what was
contributed and not on who was first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.types import LabelledImages, SyntheticBatch
from hfmds.errors import InvalidInput


def content_hash(pixels: NDArray[np.uint8], label: int) -> str:
    """SHA-256 in hex of one sample: its label, its shape and its pixels."""
    header = f"{label}:{'x'.join(map(str, pixels.shape))}:".encode()
    return hashlib.sha256(header + pixels.tobytes()).hexdigest()


def merge(batches: Mapping[str, SyntheticBatch]) -> SyntheticBatch:
    """All batches in device-id order; of samples alike in pixels and label the first stays."""
    ordered = [batches[device_id] for device_id in sorted(batches)]
    if not ordered:
        raise InvalidInput("there is no synthetic batch to make a pool of")
    for device_id, batch in batches.items():
        if batch.images.pixels.shape[1:] != ordered[0].images.pixels.shape[1:]:
            raise InvalidInput(
                f"the synthetic batch of device {device_id!r} has images "
                f"{list(batch.images.pixels.shape[1:])}, that of {min(batches)!r} "
                f"{list(ordered[0].images.pixels.shape[1:])}"
            )
    pixels = np.concatenate([b.images.pixels for b in ordered])
    labels = np.concatenate([b.images.labels for b in ordered])
    first_seen: dict[str, int] = {}
    for index, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        first_seen.setdefault(content_hash(image, label), index)
    kept = np.fromiter(first_seen.values(), np.int64)
    return SyntheticBatch(
        LabelledImages(pixels[kept], labels[kept]),
        psnr_paired=np.concatenate([b.psnr_paired for b in ordered])[kept],
        psnr_nearest=np.concatenate([b.psnr_nearest for b in ordered])[kept],
    )
