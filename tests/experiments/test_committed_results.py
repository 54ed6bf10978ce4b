"""What docs/results says of CIFAR-10 is what its results.json files have."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from hfmds.experiments.config import read_experiment
from hfmds.experiments.library import find

FOLDER = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(path.parent.name for path in FOLDER.glob("*/results.json"))
CONTROLS = {"FedAvg", "FedAvg lr/10", "FedAvg lr/10 later", "noise pool"}
SKEWED = "Dir(0.01)"
SEEDS = 3


@cache
def numbers(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / page / "results.json").read_text())
    return found


def scores(arm: str, split: str = SKEWED, page: str = "table2-small") -> dict[int, float]:
    """Points of accuracy by seed."""
    return {
        one["seed"]: 100 * one["accuracy"]
        for one in numbers(page)["results"]
        if (one["arm"], one["split"]) == (arm, split)
    }


def gains(over: str) -> list[float]:
    ours, theirs = scores("HFMDS-FL"), scores(over)
    assert len(ours) >= SEEDS
    assert ours.keys() == theirs.keys()
    return [ours[seed] - theirs[seed] for seed in ours]


@pytest.mark.parametrize(("control", "least"), [("FedAvg", 3.0), ("FedAvg lr/10", 1.5)])
def test_hfmds_beats_fedavg_at_either_rate_where_data_are_least_alike(
    control: str, least: float
) -> None:
    assert fmean(gains(control)) >= least
    assert min(gains(control)) > 0


@pytest.mark.parametrize("control", ["FedAvg lr/10 later", "noise pool"])
def test_nor_is_it_the_smaller_step_or_any_pool_that_does_it(control: str) -> None:
    assert min(gains(control)) > 0


@pytest.mark.parametrize("arm", ["FMDS-FL", "HFMDS-FL"])
def test_what_is_shared_is_far_less_alike_than_averages_are(arm: str) -> None:
    psnr = {(one["arm"], one["split"]): one["by_seed"] for one in numbers("table3-small")["psnr"]}
    splits = {split for name, split in psnr if name == arm}
    assert len(splits) == 3
    for split in splits:
        ours, averages = psnr[arm, split], psnr["FedMix", split]
        assert len(ours) >= SEEDS
        for own, average in zip(ours, averages, strict=True):
            assert 8.5 <= own <= 12
            assert own <= average - 3


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_all_controls_and_is_complete(page: str) -> None:
    found = numbers(page)
    assert set(found["experiment"]["controls"]) == CONTROLS
    done = {one["arm"] for one in found["results"] if one["status"] == "done"}
    assert done >= CONTROLS
    assert {one["status"] for one in found["results"]} == {"done"}
    controls = (FOLDER / page / "table.md").read_text().partition("## Against the controls")[2]
    header = controls.strip().splitlines()[0]
    assert all(f"| {control} |" in header for control in CONTROLS)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_of_the_experiment_as_it_is_configured(page: str) -> None:
    name, _, size = page.rpartition("-")
    experiment, shown = read_experiment(find(name), size), numbers(page)["experiment"]
    assert list(experiment.arms) == list(shown["arms"])
    assert list(experiment.splits) == list(shown["splits"])
    assert list(experiment.seeds) == shown["seeds"]


def test_hard_features_are_harder_at_every_refresh() -> None:
    seen = 0
    for page in PAGES:
        for one in numbers(page)["results"]:
            if one["arm"] == "HFMDS-FL" and one["value"] != 0:
                for pool in one["pools"]:
                    assert pool["health"]["hard_margin"] < pool["health"]["real_margin"]
                    seen += 1
    assert seen > 100


def test_images_that_do_not_get_their_label_are_told_of() -> None:
    """From the second refresh on 97 % should; the text names those that do not."""
    text = (FOLDER / "README.md").read_text()
    below = {
        f"{100 * pool['health']['accuracy']:.1f}"
        for page in PAGES
        for one in numbers(page)["results"]
        if one["arm"] in ("FMDS-FL", "HFMDS-FL")
        for pool in one["pools"][1:]
        if pool["health"]["accuracy"] < 0.97
    }
    assert below
    assert [number for number in below if number not in text] == []


def test_gradients_that_are_not_sound_are_told_of() -> None:
    text = (FOLDER / "README.md").read_text()
    ratios = {
        pool["health"]["gradient_ratio"]
        for page in PAGES
        for one in numbers(page)["results"]
        if one["arm"] in ("FMDS-FL", "HFMDS-FL")
        for pool in one["pools"]
    }
    outside = {f"{ratio:.1f}" for ratio in ratios if not 0.1 <= ratio <= 10}
    assert outside
    assert [number for number in outside if number not in text] == []
