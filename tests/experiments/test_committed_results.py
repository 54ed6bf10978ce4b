"""What docs/results says of CIFAR-10 is what its results.json files have."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
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
MATCHING = {"FMDS-FL", "HFMDS-FL", "L_C + L_EFM"}
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


def test_a_rate_that_falls_is_better_than_fedavg_in_all_splits_of_table_2() -> None:
    splits = numbers("table2-small")["experiment"]["splits"]
    assert len(splits) == 3
    for split in splits:
        falls, stays = scores("FedAvg lr/10 later", split), scores("FedAvg", split)
        assert fmean(falls.values()) > fmean(stays.values())


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


def told(topic: str) -> str:
    """What the README says of a topic in its section on the syntheses' health."""
    section = (FOLDER / "README.md").read_text().partition("## Health of the syntheses")[2]
    points = section.partition("\n## ")[0].split("\n- **")
    (found,) = [point for point in points if point.startswith(topic)]
    return found


def health(name: str, arms: Collection[str], first: int = 0) -> list[float]:
    """One number of all refreshes of these arms, from the first, second, ... on."""
    return [
        pool["health"][name]
        for page in PAGES
        for one in numbers(page)["results"]
        if one["arm"] in arms
        for pool in one["pools"][first:]
    ]


def test_images_that_do_not_get_their_label_are_told_of() -> None:
    """From the second refresh on 97 % should; the text names those that do not, and no others."""
    text, arms = told("Images that get their label"), {*MATCHING, "L_C only"}
    below = {f"{100 * share:.1f}" for share in health("accuracy", arms, 1) if share < 0.97}
    assert below
    assert {*re.findall(r"\b\d\d\.\d\b", text)} == below
    assert "At their third all have 99 % or more" in text
    assert min(health("accuracy", arms, 2)) >= 0.99


def test_gradients_that_are_not_sound_are_told_of() -> None:
    within, _, outside = told("Gradient of the matching loss").partition("but for five refreshes")
    ratios = {*health("gradient_ratio", MATCHING)}  # a trial may be on several pages
    sound = {ratio for ratio in ratios if 0.1 <= ratio <= 10}
    alone = health("gradient_ratio", {"L_C only"})
    assert f": {min(sound):.2f} to {max(sound):.1f}, sound (0.1 to 10;" in within
    assert f" {min(alone):.2f} to {max(alone):.1f})" in within
    assert len(ratios - sound) == 5
    assert {*re.findall(r"\d+\.\d", outside)} == {f"{ratio:.1f}" for ratio in ratios - sound}
