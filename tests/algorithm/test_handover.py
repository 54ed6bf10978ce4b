"""What passes between processes must arrive as it was, also where a file is written over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.local_work import TrainedModel
from hfmds.algorithm.simulation.shared_arrays import Desk, Shelf, store
from tests.algorithm.examples import RECIPE, assert_same, images, weights, work

ARRAYS: Mapping[str, NDArray[Any]] = {
    "bytes": np.arange(70, dtype=np.uint8),
    "scalar": np.array(1.5, np.float32),
    "turned": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "empty": np.empty((0, 3), np.float32),
}


def test_arrays_come_back_with_their_types_and_shapes(tmp_path: Path):
    back = store(tmp_path / "file", ARRAYS).mapped()
    assert_same(back, ARRAYS)
    assert [(a.dtype, a.shape) for a in back.values()] == [
        (a.dtype, a.shape) for a in ARRAYS.values()
    ]


def test_arrays_without_content_come_back(tmp_path: Path):
    nothing = {"empty": ARRAYS["empty"]}
    assert_same(store(tmp_path / "file", nothing).mapped(), nothing)


def test_arrays_are_written_over_larger_and_smaller_ones(tmp_path: Path):
    for length in (100, 1000, 10):
        arrays = {"a": np.full(length, length), "b": np.arange(length)}
        assert_same(store(tmp_path / "file", arrays).mapped(), arrays)


def test_writing_to_arrays_does_not_reach_the_file(tmp_path: Path):
    stored = store(tmp_path / "file", ARRAYS)
    stored.mapped()["bytes"][:] = 7
    assert_same(stored.mapped(), ARRAYS)


def test_a_result_stays_on_the_desk_while_the_next_is_delivered(tmp_path: Path):
    desk = Desk(tmp_path / "worker-0")
    results = [TrainedModel(weights(seed), samples=seed, loss=0.5) for seed in range(3)]
    first, second = desk.deliver(results[0]), desk.deliver(results[1])
    collected = first.collect()
    desk.deliver(results[2])  # where the first was
    assert collected.samples == 0
    assert_same(collected.weights, results[0].weights)
    assert_same(second.collect().weights, results[1].weights)
    assert len(list(tmp_path.iterdir())) == 2


def test_weights_that_are_remembered_are_delivered_once(tmp_path: Path):
    trained = weights()
    delivery = Desk(tmp_path / "worker-0").deliver(TrainedModel(trained, 5, 0.5, memory=trained))
    assert delivery.rest.memory == {}
    back = delivery.collect()
    assert back.memory is back.weights


def test_a_forgotten_file_is_written_over_by_arrays_of_its_layout(tmp_path: Path):
    shelf = Shelf(tmp_path)
    task = work(RECIPE, images(5))

    def inode(name: str) -> int:
        return (tmp_path / name).stat().st_ino

    shelf.begin_phase()
    shelf.place(task)
    forgotten = inode("shared-1")  # the weights; shared-2 is the shard
    for seed in (1, 2):
        shelf.begin_phase()
        parcel = shelf.place(replace(task, weights=weights(seed)))
    assert inode("shared-4") == forgotten
    assert_same(parcel.open().weights, weights(2))
    np.testing.assert_array_equal(parcel.open().shard.pixels, task.shard.pixels)


def test_a_forgotten_file_that_nothing_fits_is_removed(tmp_path: Path):
    shelf = Shelf(tmp_path)
    first = work(RECIPE, images(5))
    shelf.begin_phase()
    shelf.place(first)
    for count in (6, 7, 8):
        shelf.begin_phase()
        shelf.place(replace(first, shard=images(count)))
    names = sorted(path.name for path in tmp_path.iterdir())
    # The weights, the shards of the last two phases, and the one that waits to be written over.
    assert names == ["shared-1", "shared-3", "shared-4", "shared-5"]
