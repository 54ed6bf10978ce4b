from __future__ import annotations

import numpy as np

from hfmds.algorithm.pixels import as_uint8, levels, normalise, of_levels, to_pixels
from hfmds.domain.recipe import Normalisation

TWO_CHANNELS = Normalisation(mean=(0.5, 0.2), std=(0.25, 0.1))


def test_normalise_per_channel():
    pixels = np.array([255, 51], np.uint8).reshape(1, 2, 1, 1)
    values = normalise(pixels, TWO_CHANNELS)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values.ravel(), [2.0, 0.0], atol=1e-6)


def test_every_pixel_value_survives_the_round_trip():
    pixels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 2, axis=1).reshape(256, 2, 1, 1)
    np.testing.assert_array_equal(to_pixels(normalise(pixels, TWO_CHANNELS), TWO_CHANNELS), pixels)


def test_values_outside_the_image_are_clamped_and_the_rest_rounded():
    values = np.array([-9.0, 9.0, (100.6 / 255 - 0.5) / 0.25], np.float32).reshape(3, 1, 1, 1)
    pixels = to_pixels(values, Normalisation((0.5,), (0.25,)))
    assert pixels.ravel().tolist() == [0, 255, 101]


def test_half_precision_is_normalised_as_bytes_are():
    halves = np.array([1.0, 0.2], np.float16).reshape(1, 2, 1, 1)
    values = normalise(halves, TWO_CHANNELS)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values.ravel(), [2.0, 0.0], atol=1e-3)
    back = to_pixels(values, TWO_CHANNELS, "fp16")
    assert back.dtype == np.float16
    np.testing.assert_array_equal(back, halves)


def test_half_precision_keeps_every_byte_and_what_lies_between():
    pixels = np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1)
    halves = of_levels(levels(pixels), "fp16")
    np.testing.assert_array_equal(as_uint8(halves), pixels)
    assert as_uint8(pixels).tolist() == pixels.tolist()
    between = of_levels(np.array([100.4], np.float32), "fp16")
    assert levels(between)[0] == np.float32(between[0]) * 255
    assert abs(levels(between)[0] - 100.4) < 0.05
