from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hfmds.domain.learning import LabelledImages
from hfmds.errors import InvalidInput
from tests.algorithm.examples import SPEC, images

MIXED = LabelledImages(
    np.zeros((2, 1, 16, 16), np.uint8),
    np.array([1, 0]),
    np.array([[0.25, 0.75, 0], [0.5, 0.25, 0.25]], np.float32),
)


def test_taking_keeps_pixels_labels_and_shares_together():
    taken = MIXED.take(np.array([1, 1, 0]))
    assert taken.labels.tolist() == [0, 0, 1]
    assert taken.shares is not None
    assert taken.shares.tolist() == [[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.25, 0.75, 0]]
    assert images(3).take(np.array([2])).shares is None
    assert not len(MIXED.take(np.array([], np.int64)))


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (
            np.zeros((2, 1, 4, 4), np.float32),
            np.zeros(2, np.int64),
            r"uint8 or float16 \[n, .* not float32",
        ),
        (np.zeros((2, 4, 4), np.uint8), np.zeros(2, np.int64), r"not uint8 \[2, 4, 4\]"),
        (np.zeros((2, 1, 4, 4), np.uint8), np.zeros(3, np.int64), r"int64 \[2\], not int64 \[3\]"),
        (np.zeros((2, 1, 4, 4), np.uint8), np.zeros(2, np.int32), r"int64 \[2\], not int32 \[2\]"),
    ],
)
def test_arrays_of_another_form_are_refused(pixels: np.ndarray, labels: np.ndarray, message: str):
    with pytest.raises(InvalidInput, match=message):
        LabelledImages(pixels, labels)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (np.array([[0, 1, 0], [1, 0, 0]], np.float64), r"float32 \[2, classes\], not float64"),
        (np.array([[0, 1, 0]], np.float32), r"float32 \[2, classes\], not float32 \[1, 3\]"),
        (np.zeros((2, 0), np.float32), r"float32 \[2, classes\], not float32 \[2, 0\]"),
        (np.array([[-0.5, 1.5, 0], [1, 0, 0]], np.float32), "must not be negative"),
        (np.array([[0.2, 0.7, 0], [1, 0, 0]], np.float32), "must sum to 1"),
        (np.array([[1, 0, 0], [1, 0, 0]], np.float32), "greatest for its label"),
        (np.array([[np.nan, 1, 0], [1, 0, 0]], np.float32), "must not be negative"),
    ],
    ids=["kind", "number", "no class", "negative", "sum", "label", "nan"],
)
def test_class_shares_that_are_none_are_refused(shares: np.ndarray, message: str):
    with pytest.raises(InvalidInput, match=message):
        replace(MIXED, shares=shares)


def test_images_the_model_cannot_take_are_refused_by_name():
    MIXED.require_fit(SPEC, "the pool")
    with pytest.raises(InvalidInput, match=r"\[1, 16, 16\].*\[1, 16, 20\]"):
        MIXED.require_fit(replace(SPEC, width=20), "the pool")
    with pytest.raises(InvalidInput, match=r"0 to 2, .* 0 to 1"):
        images(9).require_fit(replace(SPEC, classes=2), "the shard")
    with pytest.raises(InvalidInput, match="3 classes, the model has 4"):
        MIXED.require_fit(replace(SPEC, classes=4), "the pool")
