"""The checks that a batch must pass to enter a pool. A refusal names the faulty samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from hfmds.algorithm.leakage.leakage_limits import describe_faults, require_no_refusal
from hfmds.domain.digest import Digest
from hfmds.domain.learning import MEASUREMENTS, SyntheticBatch
from hfmds.domain.pool_policy import HIGHEST_PSNR_DB, HIGHEST_SSIM
from hfmds.domain.pools import PoolSpec
from hfmds.errors import InvalidInput, LimitExceeded

_BYTES_BESIDE_PIXELS = 8 + 4 * len(MEASUREMENTS)  # the label and the measurements of a sample
_PIXELS: Mapping[str, np.dtype[Any]] = {"uint8": np.dtype(np.uint8), "fp16": np.dtype(np.float16)}
_SHARE_BYTES = 4  # per class, of mixtures
_HEADER_BYTES = 4096  # names, types and shapes of seven tensors need about 600
_RANGES = {
    "psnr_paired": (0.0, HIGHEST_PSNR_DB),
    "psnr_nearest": (0.0, HIGHEST_PSNR_DB),
    "ssim_paired": (-1.0, HIGHEST_SSIM),
    "ssim_nearest": (-1.0, HIGHEST_SSIM),
}


class OtherWeights(InvalidInput):
    """A device made a batch with another model than the pool's."""


def require_size(batch: Digest, spec: PoolSpec) -> None:
    """Refuse a batch that announces more bytes than any batch of the pool can have."""
    limit = max_batch_bytes(spec)
    if batch.size_bytes > limit:
        raise LimitExceeded(
            f"batch {batch}: {batch.size_bytes} bytes are announced, "
            f"but the pool accepts {limit} of a device"
        )


def max_batch_bytes(spec: PoolSpec) -> int:
    """Return the size of the largest batch that the pool accepts."""
    channels, height, width = spec.model.image_shape
    pixel_bytes = channels * height * width * _PIXELS[spec.policy.pixel_type].itemsize
    sample_bytes = pixel_bytes + _BYTES_BESIDE_PIXELS
    if spec.with_shares:
        sample_bytes += spec.model.classes * _SHARE_BYTES
    return _HEADER_BYTES + spec.max_samples_per_device * sample_bytes


def require_weights(weights: Digest | None, spec: PoolSpec, what: str) -> None:
    """Refuse a batch that the device made with another model than the pool's."""
    if weights not in (None, spec.weights):
        raise OtherWeights(
            f"{what}: it was made with weights {weights}, but the pool is for {spec.weights} of "
            f"round {spec.round_number}; synthesise again with those"
        )


def require_fit(batch: SyntheticBatch, spec: PoolSpec, what: str) -> None:
    """Refuse a batch that does not fit the pool; `what` names it in errors."""
    if not len(batch):
        raise InvalidInput(f"{what}: it has no sample; send at least one")
    if len(batch) > spec.max_samples_per_device:
        raise LimitExceeded(
            f"{what}: it has {len(batch)} samples, but the pool accepts "
            f"{spec.max_samples_per_device} of a device; send fewer"
        )
    expected, actual = _PIXELS[spec.policy.pixel_type], batch.images.pixels.dtype
    if actual != expected:
        raise InvalidInput(f"{what}: its pixels are {actual}, but the pool accepts {expected}")
    faults = _faults(batch, spec.model.classes)
    if faults:
        raise InvalidInput(describe_faults(what, len(batch), faults))
    batch.images.require_fit(spec.model, what)
    # A device could not read a pool in which only some batches have shares.
    has_shares = batch.images.shares is not None
    if has_shares != spec.with_shares:
        raise InvalidInput(
            f"{what}: it has {'' if has_shares else 'no '}class shares, but the pool accepts only "
            f"batches {'with' if spec.with_shares else 'without'} them"
        )
    _require_class_quota(batch, spec.policy.max_samples_per_class, what)
    require_no_refusal(batch, spec.policy, what)


def _require_class_quota(batch: SyntheticBatch, limit: int, what: str) -> None:
    if not limit:
        return
    counts = np.bincount(batch.images.labels)
    fullest = int(counts.argmax())
    if counts[fullest] > limit:
        raise LimitExceeded(
            f"{what}: it has {counts[fullest]} samples of class {fullest}, but the pool accepts "
            f"{limit} of a class from a device; send fewer"
        )


def _faults(batch: SyntheticBatch, classes: int) -> Mapping[int, list[str]]:
    """Return the faults of each sample that breaks the contract, by its index."""
    faults: defaultdict[int, list[str]] = defaultdict(list)
    labels = batch.images.labels
    for index in np.flatnonzero((labels < 0) | (labels >= classes)).tolist():
        faults[index].append(f"label {labels[index]}, the model has classes 0 to {classes - 1}")
    for name, (lowest, highest) in _RANGES.items():
        values = batch.measurements[name]
        for index in np.flatnonzero((values < lowest) | (values > highest)).tolist():
            faults[index].append(
                f"{name} is {values[index]:g}, it must be within {lowest:g} and {highest:g}"
            )
    return faults
