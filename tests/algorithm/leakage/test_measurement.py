from __future__ import annotations

import numpy as np
import pytest

from hfmds.algorithm.leakage import measurement
from hfmds.algorithm.leakage.measurement import (
    IDENTICAL_DB,
    measure_leakage,
    nearest_real,
    psnr_nearest,
    psnr_paired,
    ssim_paired,
    summarise_leakage,
)
from hfmds.domain.learning import LabelledImages
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
    monkeypatch.setattr(measurement, "_CHUNK_PIXELS", 3 * 48)
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


def test_ssim_of_equal_images_is_one_and_of_opposite_ones_below_zero():
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (1, 3, 9, 8), dtype=np.uint8)
    assert ssim_paired(image, image)[0] == 1
    assert ssim_paired(image, 255 - image)[0] < -0.5
    assert ssim_paired(image, image).dtype == np.float32


def test_ssim_of_constant_images_is_the_likeness_of_their_brightness():
    found = ssim_paired(constant(100), constant(200))
    c1 = (0.01 * 255) ** 2
    assert found[0] == pytest.approx((2 * 100 * 200 + c1) / (100**2 + 200**2 + c1))


def test_ssim_is_the_mean_over_windows_and_channels():
    random = np.random.default_rng(1)
    one, other = random.integers(0, 256, (2, 2, 2, 9, 8), dtype=np.uint8)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2

    def of_window(x: np.ndarray, y: np.ndarray) -> float:
        x, y = x.astype(float), y.astype(float)
        covariance = ((x - x.mean()) * (y - y.mean())).mean()
        alike = (2 * x.mean() * y.mean() + c1) * (2 * covariance + c2)
        return alike / ((x.mean() ** 2 + y.mean() ** 2 + c1) * (x.var() + y.var() + c2))

    expected = [
        np.mean(
            [
                of_window(x[c, i : i + 7, j : j + 7], y[c, i : i + 7, j : j + 7])
                for c in range(2)
                for i in range(3)
                for j in range(2)
            ]
        )
        for x, y in zip(one, other, strict=True)
    ]
    np.testing.assert_allclose(ssim_paired(one, other), expected, rtol=1e-6)


def test_ssim_does_not_depend_on_how_many_images_are_compared_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    random = np.random.default_rng(3)
    one, other = random.integers(0, 256, (2, 5, 1, 8, 8), dtype=np.uint8)
    at_once = ssim_paired(one, other)
    monkeypatch.setattr(measurement, "_CHUNK_PIXELS", 2 * 64)
    np.testing.assert_array_equal(ssim_paired(one, other), at_once)
    assert len(set(at_once.tolist())) == 5
    assert ssim_paired(one[:0], other[:0]).tolist() == []


def test_a_batch_is_measured_against_its_partners_and_against_the_nearest():
    random = np.random.default_rng(2)
    real = random.integers(0, 256, (4, 1, 8, 8), dtype=np.uint8)
    images = LabelledImages(real[[2, 1]] // 2 + 60, np.array([0, 1]))
    partners = real[[0, 1]]
    batch = measure_leakage(images, partners, real)
    assert nearest_real(images.pixels, real).tolist() == [2, 1]
    np.testing.assert_array_equal(batch.psnr_paired, psnr_paired(images.pixels, partners))
    np.testing.assert_array_equal(batch.psnr_nearest, psnr_paired(images.pixels, real[[2, 1]]))
    np.testing.assert_array_equal(batch.ssim_paired, ssim_paired(images.pixels, partners))
    np.testing.assert_array_equal(batch.ssim_nearest, ssim_paired(images.pixels, real[[2, 1]]))
    assert batch.ssim_nearest[0] > batch.ssim_paired[0]


def test_half_precision_is_compared_with_bytes_on_the_same_scale():
    real = constant(0, 51, 255)
    synthetic = np.array([1, 0, 1], np.float16).repeat(4).reshape(-1, 1, 2, 2)
    np.testing.assert_allclose(
        psnr_paired(synthetic, real), [0.0, 20 * np.log10(5), IDENTICAL_DB], rtol=1e-6
    )
    assert nearest_real(synthetic, real).tolist() == [2, 0, 2]
    assert ssim_paired(synthetic, real)[2] == 1


def test_summary_is_mean_p99_and_max_of_both():
    paired = np.arange(101, dtype=np.float32)
    summary = summarise_leakage(paired, paired + 10)
    assert (summary.paired_mean, summary.paired_p99, summary.paired_max) == (50, 99, 100)
    assert (summary.nearest_mean, summary.nearest_p99, summary.nearest_max) == (60, 109, 110)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidInput, match="cannot be compared in pairs"):
        psnr_paired(constant(1, 2), constant(1))
    with pytest.raises(InvalidInput, match="cannot be compared in pairs"):
        ssim_paired(constant(1, 2), constant(1))
    with pytest.raises(InvalidInput, match="cannot be compared with"):
        psnr_nearest(constant(1), constant())
    with pytest.raises(InvalidInput, match="no synthetic image"):
        summarise_leakage(np.array([], np.float32), np.array([], np.float32))
