import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hfmds.cli.demo.report import DemoResult, prepare_report_folder, write_report
from hfmds.cli.demo.setting import DemoSetting
from hfmds.cli.demo.summary import summarise, verdict
from hfmds.domain.learning import SyntheticBatch
from hfmds.errors import ConfigurationError
from tests.cli.values import a_followed_run, a_pool

PICTURES = ["accuracy.png", "pool.png", "psnr.png"]


def a_result(pool: SyntheticBatch | None) -> DemoResult:
    runs = (a_followed_run("FedAvg", [0.2, 0.3]), a_followed_run("HFMDS", [0.2, 0.7], pool=True))
    summaries = tuple(summarise(run) for run in runs)
    return DemoResult(
        setting=DemoSetting(),
        runs=runs,
        summaries=summaries,
        verdict=verdict(summaries[1], summaries[:1]),
        pool=pool,
        real_psnr=np.array([18.0, 20.0], np.float32),
        elapsed_seconds=12.5,
    )


def test_the_report_is_complete(tmp_path: Path) -> None:
    written = write_report(tmp_path, a_result(a_pool()))
    assert [path.name for path in written] == [*PICTURES, "report.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*PICTURES, "report.json"])
    for name in PICTURES:
        with Image.open(tmp_path / name) as image:
            image.load()
            assert image.width >= 800
            assert len(set(np.asarray(image.convert("L")).ravel().tolist())) > 20  # not blank


def test_the_report_contains_all_numbers(tmp_path: Path) -> None:
    pool = a_pool()
    write_report(tmp_path, a_result(pool))
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert numbers["setting"]["devices"] == DemoSetting().devices
    assert numbers["elapsed_seconds"] == 12.5
    assert numbers["verdict"]["ahead"] is True
    assert [run["label"] for run in numbers["runs"]] == ["FedAvg", "HFMDS"]
    assert numbers["runs"][1]["run"]["method"] == "hfmds"
    assert numbers["runs"][1]["run"]["spec"]["recipe"]["training"]["learning_rate"] == 0.005
    last = numbers["runs"][1]["rounds"][-1]
    assert last["evaluation"]["accuracy"] == 0.7
    assert last["pool"]["leakage"]["paired_max"] == 12.3
    assert last["traffic"] == {"received_bytes": 2_000_000, "sent_bytes": 1_000_000}
    assert numbers["summaries"][1]["moved_bytes"] == 6_000_000
    assert numbers["pool"]["psnr_paired_db"] == pytest.approx(pool.psnr_paired.tolist())
    assert numbers["pool"]["psnr_nearest_db"] == pytest.approx(pool.psnr_nearest.tolist())
    assert numbers["versions"]["numpy"] == np.__version__
    assert numbers["machine"]["processors"] >= 1


def test_an_older_report_is_replaced_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in (*PICTURES, "report.json", "notes.txt"):
        (tmp_path / name).write_text("old")
    written = write_report(tmp_path, a_result(pool=None))
    assert [path.name for path in written] == ["accuracy.png", "report.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "accuracy.png",
        "notes.txt",
        "report.json",
    ]
    assert (tmp_path / "notes.txt").read_text() == "old"


def test_colour_images_and_single_values_can_be_drawn(tmp_path: Path) -> None:
    grey = a_pool(per_class=1, classes=1)
    pixels = np.repeat(grey.images.pixels, 3, axis=1)
    colour = replace(grey, images=replace(grey.images, pixels=pixels))
    assert len(write_report(tmp_path, a_result(colour))) == 4


def test_an_impossible_report_folder_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="choose another --report"):
        prepare_report_folder(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="Not a directory"):
        prepare_report_folder(tmp_path / "file" / "report")
    prepare_report_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
