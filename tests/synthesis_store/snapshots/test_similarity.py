"""The distance between two images."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hfmds.domain.learning import LabelledImages
from synthesis_store.snapshots.similarity import max_squared_distance, vectors_of
from tests.synthesis_store.pictures import blotches, noisy

COLOURS, EDGES = 64, 64  # values of a vector of an image with one channel


def vectors(*pixels: NDArray[np.generic]) -> NDArray[np.int64]:
    """Of images, each [channels, height, width]."""
    images = LabelledImages(np.stack(pixels), np.zeros(len(pixels), np.int64))
    return vectors_of(images).astype(np.int64)


def distance(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    left, right = vectors(one, other)
    return float(np.sqrt(((left - right) ** 2).sum() / max_squared_distance(1)))


def test_a_vector_says_where_an_image_is_bright_and_where_it_rises_and_falls() -> None:
    step = np.zeros((1, 8, 8), np.uint8)
    step[:, :, 4:] = 255
    (vector,) = vectors(step)
    dark, bright = [-16] * 4, [16] * 4  # 127 / 8
    assert vector[:COLOURS].tolist() == (dark + bright) * 8
    down, up, right, left = vector[COLOURS:].reshape(4, 4, 4)
    # It rises from left to right only: blurred, by 1 15 15 1 parts of 32 in the four columns.
    assert not down.any()
    assert not up.any()
    assert not left.any()
    assert right.tolist() == [[11, 43, 43, 11]] * 4  # 127 times the root of parts / 128


def test_both_halves_count_the_same() -> None:
    (vector,) = vectors(blotches(1))
    halves = np.split(vector, [3 * COLOURS])
    assert [np.sqrt((half**2).sum()) for half in halves] == pytest.approx([127, 127], abs=2)


def test_brightness_makes_no_difference() -> None:
    image = np.clip(blotches(1), 0, 200).astype(np.uint8)
    dark, bright = vectors(image, image + 50)
    assert dark.tolist() == bright.tolist()


@pytest.mark.parametrize("colour", [0, 7, 255])
def test_an_image_of_one_grey_has_no_looks(colour: int) -> None:
    assert not vectors(np.full((3, 32, 32), colour, np.uint8)).any()


def test_flat_images_of_different_colours_are_not_alike() -> None:
    red, blue = np.zeros((2, 3, 8, 8), np.uint8)
    red[0], blue[2] = 200, 200
    assert distance(red, blue) > 1


def test_the_same_picture_changed_a_little_is_near_and_another_is_not() -> None:
    image = blotches(1)
    paler = (image // 2 + 64).astype(np.uint8)
    assert distance(image, noisy(image)) < 0.2
    assert distance(image, paler) < 0.2
    assert distance(image, blotches(2)) > 0.8


def test_float16_pixels_look_as_bytes_do() -> None:
    image = blotches(1)
    assert vectors((image / 255).astype(np.float16)).tolist() == vectors(image).tolist()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 3), (3, 7, 9), (2, 33, 64)])
def test_images_of_any_size_have_vectors_of_one_size(shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert vectors(image).shape == (1, shape[0] * COLOURS + EDGES)


def test_many_images_look_as_each_alone() -> None:
    images = [blotches(seed) for seed in range(300)]
    assert vectors(*images)[-1].tolist() == vectors(images[-1])[0].tolist()
