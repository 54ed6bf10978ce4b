from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from hfmds.algorithm.pool import Merge, concatenate, content_hash, merge
from hfmds.domain.learning import LabelledImages
from hfmds.errors import InvalidInput
from tests.algorithm.examples import batch


def one(pixels: np.ndarray, label: int, shares: list[float] | None = None) -> LabelledImages:
    """One image as a set."""
    mixed = None if shares is None else np.array([shares], np.float32)
    return LabelledImages(pixels[None], np.array([label]), mixed)


def test_merge_is_in_device_order_whoever_came_first():
    pool = merge({"b": batch([3], [1]), "a": batch([1, 2], [0, 0], psnr=[7, 8])})
    assert pool.images.pixels.ravel().tolist() == [1, 2, 3]
    assert pool.images.labels.tolist() == [0, 0, 1]
    assert pool.images.shares is None
    assert pool.psnr_paired.tolist() == [7, 8, 9]
    assert pool.psnr_nearest.tolist() == [8, 9, 10]


def test_of_exact_duplicates_the_first_stays():
    pool = merge({"b": batch([5, 6], [0, 0], psnr=[1, 2]), "a": batch([5, 5], [0, 0], [3, 4])})
    assert pool.images.pixels.ravel().tolist() == [5, 6]
    assert pool.psnr_paired.tolist() == [3, 2]


def test_the_same_pixels_under_another_label_are_another_sample():
    assert len(merge({"a": batch([5], [0]), "b": batch([5], [1])})) == 2


def test_class_shares_stay_with_their_images():
    mixed = batch([5, 6, 5], [0, 1, 0], shares=[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
    pool = merge({"b": mixed, "a": batch([6], [0], shares=[[1, 0]])})
    assert pool.images.pixels.ravel().tolist() == [6, 5, 6]
    assert pool.images.shares is not None
    assert pool.images.shares.tolist() == [[1, 0], [0.5, 0.5], [0.25, 0.75]]
    assert pool.images.shares.dtype == np.float32


def test_the_same_pixels_of_other_class_shares_are_another_sample():
    pool = merge({"a": batch([5], [0], shares=[[1, 0]]), "b": batch([5], [0], shares=[[0.6, 0.4]])})
    assert len(pool) == 2


def test_merging_counts_what_it_keeps_and_what_it_does_not():
    merging = Merge()
    first = batch([1, 2], [0, 0])
    assert merging.add(first) is first
    assert len(merging.add(batch([2, 1], [0, 0]))) == 0
    assert (merging.samples, merging.duplicates) == (2, 2)


def test_content_hash_knows_label_shape_pixels_and_class_shares():
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    different = [
        one(image, 1),
        one(image, 2),
        one(image.reshape(1, 3, 2), 1),
        one(image[:, ::-1], 1),
        one(image, 1, [0.25, 0.75]),
        one(image, 1, [0.125, 0.875]),
        one(image, 1, [0, 0.75, 0.25]),
    ]
    assert len({content_hash(images, 0) for images in different}) == len(different)
    assert content_hash(one(np.asfortranarray(image), 1), 0) == content_hash(one(image, 1), 0)


def test_content_hash_has_a_form_that_is_for_ever():
    """The synthesis store keeps it."""
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    written_out = b"1:1x2x3:" + bytes(range(6))
    assert content_hash(one(image, 1), 0) == hashlib.sha256(written_out).hexdigest()
    with_shares = written_out + np.array([0.25, 0.75], "<f4").tobytes()
    assert content_hash(one(image, 1, [0.25, 0.75]), 0) == hashlib.sha256(with_shares).hexdigest()


def test_concatenating_keeps_duplicates_and_order():
    both = concatenate([batch([9], [1]), batch([9, 3], [1, 0])])
    assert both.images.pixels.ravel().tolist() == [9, 9, 3]
    assert both.images.labels.tolist() == [1, 1, 0]


def test_what_makes_no_pool_is_refused():
    with pytest.raises(InvalidInput, match="no synthetic batch"):
        merge({})
    one_pixel = batch([1], [0])
    larger = LabelledImages(np.zeros((1, 1, 2, 2), np.uint8), one_pixel.images.labels)
    with pytest.raises(InvalidInput, match="different shapes"):
        merge({"a": one_pixel, "b": replace(one_pixel, images=larger)})
    halves = replace(one_pixel.images, pixels=np.zeros((1, 1, 1, 1), np.float16))
    with pytest.raises(InvalidInput, match="different types"):
        merge({"a": one_pixel, "b": replace(one_pixel, images=halves)})
    with pytest.raises(InvalidInput, match="class shares"):
        merge({"a": one_pixel, "b": batch([2], [0], shares=[[1, 0]])})
