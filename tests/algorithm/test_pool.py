from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from hfmds.algorithm.pool import content_hash, merge
from hfmds.algorithm.types import LabelledImages
from hfmds.errors import InvalidInput
from tests.algorithm.examples import batch


def test_merge_is_in_device_order_whoever_came_first():
    pool = merge({"b": batch([3], [1]), "a": batch([1, 2], [0, 0], psnr=[7, 8])})
    assert pool.images.pixels.ravel().tolist() == [1, 2, 3]
    assert pool.images.labels.tolist() == [0, 0, 1]
    assert pool.psnr_paired.tolist() == [7, 8, 9]
    assert pool.psnr_nearest.tolist() == [8, 9, 10]


def test_of_exact_duplicates_the_first_stays():
    pool = merge({"b": batch([5, 6], [0, 0], psnr=[1, 2]), "a": batch([5, 5], [0, 0], [3, 4])})
    assert pool.images.pixels.ravel().tolist() == [5, 6]
    assert pool.psnr_paired.tolist() == [3, 2]


def test_the_same_pixels_under_another_label_are_another_sample():
    assert len(merge({"a": batch([5], [0]), "b": batch([5], [1])})) == 2


def test_content_hash_knows_label_shape_and_pixels():
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    hashes = {
        content_hash(image, 1),
        content_hash(image, 2),
        content_hash(image.reshape(1, 3, 2), 1),
        content_hash(image[:, ::-1], 1),
    }
    assert len(hashes) == 4
    assert content_hash(np.asfortranarray(image), 1) == content_hash(image, 1)
    # Stored by the synthesis store: this form is forever.
    written_out = b"1:1x2x3:" + bytes(range(6))
    assert content_hash(image, 1) == hashlib.sha256(written_out).hexdigest()


def test_what_makes_no_pool_is_refused():
    with pytest.raises(InvalidInput, match="no synthetic batch"):
        merge({})
    one_pixel = batch([1], [0])
    larger = LabelledImages(np.zeros((1, 1, 2, 2), np.uint8), one_pixel.images.labels)
    with pytest.raises(InvalidInput, match="different shapes"):
        merge({"a": one_pixel, "b": replace(one_pixel, images=larger)})
