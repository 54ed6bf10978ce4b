from __future__ import annotations

import numpy as np
import pytest

from hfmds.algorithm import privacy
from hfmds.algorithm.privacy import IDENTICAL_DB, psnr_nearest, psnr_paired, summarise_leakage
from hfmds.errors import InvalidInput


def constant(*values: int) -> np.ndarray:
    """2x2 images, each of one value."""
    return np.repeat(np.array(values, np.uint8), 4).reshape(-1, 1, 2, 2)


def test_paired_psnr_of_known_differences():
    decibels = psnr_paired(constant(0, 0, 30), constant(255, 51, 30))
    assert decibels.dtype == np.float32
    # MSE 1 is 0 dB; MSE 0.2^2 is 20 log10(5); identical images are capped.
    np.testing.assert_allclose(decibels, [0.0, 20 * np.log10(5), IDENTICAL_DB], rtol=1e-6)


def test_nearest_psnr_finds_the_most_similar_image_in_every_chunk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(privacy, "_CHUNK", 3)
    random = np.random.default_rng(0)
    synthetic = random.integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    real = random.integers(0, 256, (8, 3, 4, 4), dtype=np.uint8)
    real[7] = synthetic[2]
    expected = [max(psnr_paired(s[None], r[None])[0] for r in real) for s in synthetic]
    np.testing.assert_allclose(psnr_nearest(synthetic, real), expected, rtol=1e-6)
    assert psnr_nearest(synthetic, real)[2] == IDENTICAL_DB


def test_one_grey_level_in_one_pixel_is_not_identical():
    real = np.full((1, 3, 32, 32), 200, np.uint8)
    synthetic = real.copy()
    synthetic[0, 0, 0, 0] += 1
    expected = 10 * np.log10(255**2 * 3 * 32 * 32)
    assert psnr_nearest(synthetic, real)[0] == pytest.approx(expected)
    assert expected < IDENTICAL_DB


def test_summary_is_mean_p99_and_max_of_both():
    paired = np.arange(101, dtype=np.float32)
    summary = summarise_leakage(paired, paired + 10)
    assert (summary.paired_mean, summary.paired_p99, summary.paired_max) == (50, 99, 100)
    assert (summary.nearest_mean, summary.nearest_p99, summary.nearest_max) == (60, 109, 110)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidInput, match="cannot be compared in pairs"):
        psnr_paired(constant(1, 2), constant(1))
    with pytest.raises(InvalidInput, match="cannot be compared with"):
        psnr_nearest(constant(1), constant())
    with pytest.raises(InvalidInput, match="no synthetic image"):
        summarise_leakage(np.array([], np.float32), np.array([], np.float32))
