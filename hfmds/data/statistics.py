"""Statistics of images that a run needs before it starts. Needs only numpy."""

from __future__ import annotations

import numpy as np

from hfmds.domain.learning import LabelledImages
from hfmds.domain.recipe import Normalisation
from hfmds.errors import ConfigurationError

_CHUNK = 1024  # images at a time, to bound memory


def normalisation_of(images: LabelledImages) -> Normalisation:
    """Return mean and standard deviation of the pixels in [0, 1] of each channel."""
    if not len(images):
        raise ConfigurationError("mean and deviation need at least one image")
    channels = images.pixels.shape[1]
    total, squares = np.zeros(channels), np.zeros(channels)
    for start in range(0, len(images), _CHUNK):
        values = images.pixels[start : start + _CHUNK].astype(np.float64)
        total += values.sum(axis=(0, 2, 3))
        squares += (values**2).sum(axis=(0, 2, 3))
    count = images.pixels.size // channels
    mean = total / count
    std = np.sqrt(squares / count - mean**2)
    if not std.all():  # exactly zero for a constant channel: the sums are of whole numbers
        channel = int(np.argmin(std))
        raise ConfigurationError(
            f"channel {channel} is {mean[channel]:.0f} in every pixel of every image; "
            "it carries nothing and cannot be normalised: remove the channel"
        )
    return Normalisation(tuple((mean / 255).tolist()), tuple((std / 255).tolist()))
