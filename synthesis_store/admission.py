"""What a batch must be to enter a pool."""

from __future__ import annotations

from hfmds.algorithm.types import SyntheticBatch
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.wire.types import PoolSpec

_BYTES_BESIDE_PIXELS = 8 + 4 + 4  # label, psnr_paired, psnr_nearest
_HEADER_BYTES = 4096  # names, types and shapes of four tensors need about 300


def most_batch_bytes(spec: PoolSpec) -> int:
    """The size of the largest batch the pool can take."""
    channels, height, width = spec.model.image_shape
    sample_bytes = channels * height * width + _BYTES_BESIDE_PIXELS
    return _HEADER_BYTES + spec.max_samples_per_device * sample_bytes


def require_fit(batch: SyntheticBatch, spec: PoolSpec, what: str) -> None:
    """Refuse a batch the pool cannot take; `what` names it in errors."""
    if not len(batch):
        raise InvalidInput(f"{what}: it has no sample")
    if len(batch) > spec.max_samples_per_device:
        raise LimitExceeded(
            f"{what}: it has {len(batch)} samples, "
            f"the pool takes {spec.max_samples_per_device} from a device"
        )
    batch.images.require_fit(spec.model, what)
