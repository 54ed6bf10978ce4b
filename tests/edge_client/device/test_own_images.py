"""Own images that change while the device runs."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_client.device.own_images import OwnImages
from hfmds.errors import ConfigurationError
from tests.edge_client.fakes import RECIPE

PETS = dataclasses.replace(RECIPE, class_names=("dog", "ant", "cat"))


def add(folder: Path, name: str, value: int) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), value).save(folder / name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add(tmp_path, "cat/1.png", 10)
    return tmp_path


def labels(images: OwnImages) -> list[int]:
    return images.labelled_for(PETS).labels.tolist()


def test_a_new_file_and_a_new_class_are_found_at_the_next_look(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    images = OwnImages(str(folder), "the device's data")
    add(folder, "cat/2.png", 20)
    add(folder, "dog/1.png", 30)
    assert (len(images), labels(images)) == (1, [2])
    images.look()
    assert (len(images), labels(images)) == (3, [2, 2, 0])
    assert caplog.messages == ["3 own images now, 1 before"]


def test_a_changed_file_is_read_again(folder: Path) -> None:
    images = OwnImages(str(folder), "the device's data")
    add(folder, "cat/1.png", 99)
    images.look()
    assert images.labelled_for(PETS).pixels[0, 0, 0, 0] == 99


def test_a_file_of_a_list_that_is_changed_is_read_again(folder: Path) -> None:
    (folder / "list.csv").write_text("path,label\ncat/1.png,cat\n")
    images = OwnImages(str(folder / "list.csv"), "the device's data")
    add(folder, "cat/1.png", 99)
    images.look()
    assert images.labelled_for(PETS).pixels[0, 0, 0, 0] == 99


def test_labels_beside_an_array_that_are_mended_are_read_again(tmp_path: Path) -> None:
    np.save(tmp_path / "my-images.npy", np.zeros((2, 1, 2, 2), np.uint8))
    np.save(tmp_path / "my-labels.npy", np.array([0, 1]))
    images = OwnImages(str(tmp_path / "my-images.npy"), "the device's data")
    np.save(tmp_path / "my-labels.npy", np.array([2, 1]))
    images.look()
    assert images.labelled_for(RECIPE).labels.tolist() == [2, 1]


def test_nothing_is_read_while_nothing_changes(folder: Path) -> None:
    images = OwnImages(str(folder), "the device's data")
    before = images.labelled_for(PETS).pixels
    images.look()
    assert images.labelled_for(PETS).pixels is before


def test_a_half_written_file_leaves_the_earlier_images(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = OwnImages(str(folder), "the device's data")
    whole = (folder / "cat" / "1.png").read_bytes()
    (folder / "cat" / "2.png").write_bytes(whole[:20])
    images.look()
    images.look()
    assert len(images) == 1
    assert caplog.text.count("the images have changed, but") == 1  # one log line
    (folder / "cat" / "2.png").write_bytes(whole)
    images.look()
    assert len(images) == 2


def test_a_broken_file_limits_how_often_others_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads = [0.0], []
    images = OwnImages(str(folder), "the device's data", monotonic=lambda: now[0])
    read = images._read
    monkeypatch.setattr(images, "_read", lambda: reads.append(now[0]) or read())
    (folder / "cat" / "2.png").write_bytes(b"no image")
    for seconds in range(0, 1800, 30):
        now[0] = float(seconds)
        images.look()
    assert reads == [0.0, 600.0, 1200.0]
    add(folder, "cat/2.png", 20)
    images.look()
    assert len(images) == 2


def test_an_unusable_source_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        OwnImages(str(tmp_path / "nothing"), "the device's data")
