from __future__ import annotations

import numpy as np
import pytest

from hfmds.data import statistics
from hfmds.data.statistics import normalisation_of
from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError


def labelled(pixels: np.ndarray) -> LabelledImages:
    return LabelledImages(pixels, np.zeros(len(pixels), np.int64))


def test_mean_and_deviation_per_channel_over_all_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statistics, "_CHUNK", 3)
    pixels = np.random.default_rng(0).integers(0, 256, (7, 2, 4, 5), dtype=np.uint8)
    pixels[:, 1] //= 3
    result = normalisation_of(labelled(pixels))
    np.testing.assert_allclose(result.mean, (pixels / 255).mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(result.std, (pixels / 255).std(axis=(0, 2, 3)))


def test_a_constant_channel_is_refused():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 2, 4, 5), dtype=np.uint8)
    pixels[:, 1] = 77
    with pytest.raises(ConfigurationError, match="channel 1 is 77"):
        normalisation_of(labelled(pixels))


def test_no_images_are_refused():
    with pytest.raises(ConfigurationError, match="at least one image"):
        normalisation_of(labelled(np.zeros((0, 1, 4, 4), np.uint8)))
