from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hfmds.data.split_summary import SplitSummary
from hfmds.experiments.report.split_plot import draw_split


def a_summary(counts: np.ndarray) -> SplitSummary:
    names = tuple(f"class {number}" for number in range(counts.shape[1]))
    return SplitSummary(counts, names, available=int(counts.sum()) + 5)


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def has_red(pixels: np.ndarray) -> bool:
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    return bool(((red > 150) & (green < 100) & (blue < 100)).any())


def test_a_class_that_nobody_holds_is_marked(tmp_path: Path):
    draw_split(tmp_path / "all.png", a_summary(np.array([[3, 1, 2], [0, 4, 0]])), "all are held")
    draw_split(tmp_path / "two.png", a_summary(np.array([[3, 0, 2], [0, 0, 4]])), "one is not")
    assert not has_red(pixels_of(tmp_path / "all.png"))
    assert has_red(pixels_of(tmp_path / "two.png"))


def test_more_images_are_darker_and_none_is_white(tmp_path: Path):
    path = tmp_path / "split.png"
    draw_split(path, a_summary(np.array([[9, 2, 0, 9], [0, 9, 2, 9]])), "two devices")
    pixels = pixels_of(path)
    coloured = pixels[pixels.max(axis=-1) - pixels.min(axis=-1) > 15]
    shades, areas = np.unique(coloured, axis=0, return_counts=True)
    # By area: five cells with 9 images and two with 2, beside the bars, which are of one grey.
    largest = [shade.tolist() for shade in shades[np.argsort(areas)[::-1][:3]]]
    nine, two = [shade for shade in largest if shade != [0x87, 0x96, 0xA8]]
    assert sum(nine) < sum(two) < 3 * 255 - 60


@pytest.mark.parametrize(("devices", "classes"), [(1, 1), (5, 100), (250, 5)])
def test_any_size_can_be_drawn_with_room_for_every_cell(tmp_path: Path, devices: int, classes: int):
    random = np.random.default_rng(0)
    counts = random.integers(0, 3, (devices, classes))
    counts[:, 0] = 1
    draw_split(tmp_path / "split.png", a_summary(counts), "of any size")
    height, width = pixels_of(tmp_path / "split.png").shape[:2]
    # A label of 5 points takes 10 pixels; beyond 100 devices only some have one.
    assert height >= 10 * classes
    assert width >= 10 * devices
