"""What a batch must be to enter a pool. One that is refused is told why, sample by sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from hfmds.algorithm.leakage.leakage_limits import require_no_refusal, told
from hfmds.domain.digest import Digest
from hfmds.domain.learning import MEASUREMENTS, SyntheticBatch
from hfmds.domain.pool_policy import HIGHEST_PSNR_DB, HIGHEST_SSIM
from hfmds.domain.pools import PoolSpec
from hfmds.errors import InvalidInput, LimitExceeded

_BYTES_BESIDE_PIXELS = 8 + 4 * len(MEASUREMENTS)  # the label comes first
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
    """A batch was made with another model than the pool is for."""


def most_batch_bytes(spec: PoolSpec) -> int:
    """The size of the largest batch the pool can take."""
    channels, height, width = spec.model.image_shape
    pixel_bytes = channels * height * width * _PIXELS[spec.policy.pixel_type].itemsize
    sample_bytes = pixel_bytes + _BYTES_BESIDE_PIXELS
    if spec.with_shares:
        sample_bytes += spec.model.classes * _SHARE_BYTES
    return _HEADER_BYTES + spec.max_samples_per_device * sample_bytes


def require_weights(weights: Digest | None, spec: PoolSpec, what: str) -> None:
    """Refuse a batch that says it was made with another model than the pool's."""
    if weights not in (None, spec.weights):
        raise OtherWeights(
            f"{what}: it was made with weights {weights}, the pool is for {spec.weights} of round "
            f"{spec.round_number}; synthesise anew with those"
        )


def require_fit(batch: SyntheticBatch, spec: PoolSpec, what: str) -> None:
    """Refuse a batch the pool cannot take; `what` names it in errors."""
    if not len(batch):
        raise InvalidInput(f"{what}: it has no sample; send none that is empty")
    if len(batch) > spec.max_samples_per_device:
        raise LimitExceeded(
            f"{what}: it has {len(batch)} samples, "
            f"the pool takes {spec.max_samples_per_device} from a device; send no more"
        )
    wanted, found = _PIXELS[spec.policy.pixel_type], batch.images.pixels.dtype
    if found != wanted:
        raise InvalidInput(f"{what}: its pixels are {found}, the pool takes {wanted}")
    faults = _faults(batch, spec.model.classes)
    if faults:
        raise InvalidInput(told(what, len(batch), faults))
    batch.images.require_fit(spec.model, what)
    # Devices could not read a pool in which some batches have shares and some have not.
    has_shares = batch.images.shares is not None
    if has_shares != spec.with_shares:
        raise InvalidInput(
            f"{what}: it has {'' if has_shares else 'no '}class shares, the pool takes "
            f"{'only batches with them' if spec.with_shares else 'none with them'}"
        )
    _require_class_quota(batch, spec.policy.max_samples_per_class, what)
    require_no_refusal(batch, spec.policy, what)


def _require_class_quota(batch: SyntheticBatch, most: int, what: str) -> None:
    if not most:
        return
    counts = np.bincount(batch.images.labels)
    fullest = int(counts.argmax())
    if counts[fullest] > most:
        raise LimitExceeded(
            f"{what}: it has {counts[fullest]} samples of class {fullest}, "
            f"the pool takes {most} of a class from a device; send no more"
        )


def _faults(batch: SyntheticBatch, classes: int) -> Mapping[int, list[str]]:
    """What is wrong with each sample that is not as the contract has it."""
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
