from pathlib import Path

import numpy as np
import pytest

from hfmds.cli.demo.data import write_demo_data
from hfmds.cli.demo.setting import FEDAVG, FEDAVG_SLOW, HFMDS, DemoSetting
from hfmds.data.sources import load_images
from hfmds.errors import ConfigurationError

TINY = DemoSetting(devices=3, images_per_device=10, image_size=16, rounds=2)


def test_each_device_has_its_classes_and_the_held_out_set_has_all_of_them(tmp_path: Path) -> None:
    data = write_demo_data(TINY, tmp_path / "data")
    shards = {name: load_images(str(path)) for name, path in data.shards.items()}
    assert sorted(shards) == ["device-00", "device-01", "device-02"]
    assert {len(shard) for shard in shards.values()} == {10}
    classes = [np.unique(shard.labels).tolist() for shard in shards.values()]
    assert all(len(own) == 1 for own in classes)
    held_out = load_images(str(data.held_out))
    assert np.unique(held_out.labels).tolist() == sorted(c for own in classes for c in own)
    assert held_out.pixels.shape[1:] == (1, 16, 16)
    assert len(data.real_psnr) == 30


def test_a_seed_gives_the_same_split_and_another_seed_another(tmp_path: Path) -> None:
    first = write_demo_data(TINY, tmp_path / "a").real_psnr
    again = write_demo_data(TINY, tmp_path / "b").real_psnr
    other = write_demo_data(DemoSetting(3, 1, 2, 16, 10), tmp_path / "c").real_psnr
    assert (first == again).all()
    assert not np.array_equal(first, other)


def test_more_devices_than_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ask for fewer"):
        write_demo_data(DemoSetting(devices=100), tmp_path / "data")


def test_the_three_runs_differ_only_in_the_compared_settings(tmp_path: Path) -> None:
    specs = TINY.runs()
    assert list(specs) == [FEDAVG, FEDAVG_SLOW, HFMDS]
    fast, slow, ours = (spec.recipe for spec in specs.values())
    assert slow.training.learning_rate == pytest.approx(fast.training.learning_rate / 10)
    assert [recipe.method.name for recipe in (fast, slow, ours)] == ["fedavg", "fedavg", "hfmds"]
    assert ours.training == fast.training
    assert all(spec.policy.minimum_devices == TINY.devices for spec in specs.values())
