"""What a batch must be to enter a pool."""

from __future__ import annotations

from hfmds.algorithm.types import MEASUREMENTS, SyntheticBatch
from hfmds.errors import InvalidInput, LimitExceeded
from hfmds.wire.types import PoolSpec

_BYTES_BESIDE_PIXELS = 8 + 4 * len(MEASUREMENTS)  # the label comes first
_SHARE_BYTES = 4  # per class, of mixtures
_HEADER_BYTES = 4096  # names, types and shapes of seven tensors need about 600


def most_batch_bytes(spec: PoolSpec) -> int:
    """The size of the largest batch the pool can take."""
    channels, height, width = spec.model.image_shape
    sample_bytes = channels * height * width + _BYTES_BESIDE_PIXELS
    if spec.with_shares:
        sample_bytes += spec.model.classes * _SHARE_BYTES
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
    # Devices could not read a pool in which some batches have shares and some have not.
    has_shares = batch.images.shares is not None
    if has_shares != spec.with_shares:
        raise InvalidInput(
            f"{what}: it has {'' if has_shares else 'no '}class shares, the pool takes "
            f"{'only batches with them' if spec.with_shares else 'none with them'}"
        )
