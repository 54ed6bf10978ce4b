"""Pictures with a pattern, for the tests of near duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hfmds.domain.learning import LabelledImages, SyntheticBatch


def blotches(seed: int, side: int = 32) -> NDArray[np.uint8]:
    """Coloured squares of a quarter of the side, [3, side, side]; other seeds, other colours."""
    colours = np.random.default_rng(seed).integers(0, 256, (3, 4, 4), np.uint8)
    return colours.repeat(side // 4, axis=1).repeat(side // 4, axis=2)


def noisy(image: NDArray[np.uint8], seed: int = 0) -> NDArray[np.uint8]:
    """The same to a person, and not one byte-wise."""
    noise = np.random.default_rng(seed).integers(-4, 5, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def batch_of(
    images: Sequence[NDArray[np.uint8]],
    leakage: Sequence[float] | None = None,
    labels: Sequence[int] | None = None,
) -> SyntheticBatch:
    """Pictures with the PSNR to the nearest real image, by default of one class."""
    count = len(images)
    nearest = np.full(count, 12.0) if leakage is None else leakage
    return SyntheticBatch(
        LabelledImages(np.stack(images), np.array(labels or [0] * count, np.int64)),
        psnr_paired=np.full(count, 9, np.float32),
        psnr_nearest=np.asarray(nearest, np.float32),
        ssim_paired=np.zeros(count, np.float32),
        ssim_nearest=np.zeros(count, np.float32),
    )
