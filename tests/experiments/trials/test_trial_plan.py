"""From experiments to trials: what is shared, and what is refused before anything runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hfmds.domain.recipe import Normalisation
from hfmds.errors import ConfigurationError
from hfmds.experiments.experiment import PaperNumber, Sweep, Tsne
from hfmds.experiments.loading import load
from hfmds.experiments.report.outline import outline_from
from hfmds.experiments.settings import Settings, Times
from hfmds.experiments.trials.trial_plan import TrialPlan, plan_trials
from tests.experiments.tiny import a_shelf, a_trial, an_experiment, some_data


def a_plan(settings: Settings | None = None, **changes: Any) -> TrialPlan:
    return plan_trials(an_experiment(settings, **changes), a_shelf())


def shipped(name: str) -> TrialPlan:
    experiment = load(name).experiment("small")
    # Digits are too few for forty devices with a hundred images.
    settings = {**experiment.settings, "split.samples_per_device": 20, "test_images": 40}
    return plan_trials(replace(experiment, settings=settings), a_shelf(), "digits:16")


def test_every_arm_split_and_seed_has_its_trial() -> None:
    plan = a_plan()
    places = [(cell.arm, cell.split, cell.seed) for cell in plan.outline.cells]
    assert places == [
        ("FedAvg", "two classes", 0), ("slow", "two classes", 0), ("HFMDS", "two classes", 0),
        ("FedAvg", "two classes", 1), ("slow", "two classes", 1), ("HFMDS", "two classes", 1),
    ]  # fmt: skip
    trial = plan.trials[plan.outline.cells[1].trial_id]
    assert trial.recipe.training.learning_rate == 0.005
    assert trial.seed == 0
    assert [t.recipe.method.name for t in plan.trials_of(("HFMDS",))] == ["hfmds", "hfmds"]


def test_tables_share_trials() -> None:
    everything = set(shipped("table2").trials)
    assert set(shipped("table3").trials) <= everything
    assert set(shipped("convergence").trials) == everything
    assert set(shipped("tsne").trials) <= everything
    # Of table4 the two ablations are its own, under two splits, with three seeds.
    assert len(set(shipped("table4").trials) - everything) == 2 * 2 * 3
    # Of the mu sweep: not 0 and 0.5, nor the controls.
    sweep = shipped("mu_sweep")
    assert len(set(sweep.trials) - everything) == 3 * 2 * 3
    assert len(sweep.outline.cells) == 5 * 5 * 2 * 3
    # Ten of ten active devices are all of them; one local epoch is everybody's.
    assert len(set(shipped("clients_sweep").trials) - everything) == 7 * 2 * 3
    assert len(set(shipped("epochs_sweep").trials) - everything) == 6 * 2 * 3


def test_an_id_is_of_what_determines_the_result_alone() -> None:
    data = some_data()
    trial = a_trial(data)
    assert a_trial(some_data(name="elsewhere/noise")).trial_id == trial.trial_id
    assert a_trial(data, cohort_size=3).trial_id == trial.trial_id  # all three, either way
    assert a_trial(data, test_images=100).trial_id == a_trial(data, test_images=None).trial_id
    assert a_trial(data, hfmds__mu=2).trial_id == trial.trial_id  # FedAvg has no mu
    others = [
        a_trial(data, seed=1),
        a_trial(some_data(seed=1)),
        a_trial(data, cohort_size=2),
        a_trial(data, test_images=30),
        a_trial(data, split__devices=4),
        a_trial(data, training__alpha=0.2),
        a_trial(data, method="hfmds"),
        a_trial(data, method="hfmds", hfmds__mu=2),
        a_trial(data, rounds=5),
        a_trial(data, aggregation__rule="median"),
        a_trial(data, compression="int8"),
        replace(trial, compute_device="cuda"),
    ]
    assert len({trial.trial_id, *(other.trial_id for other in others)}) == len(others) + 1


def test_all_trials_of_a_plan_are_computed_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    plan = plan_trials(an_experiment(), a_shelf(), compute_device="cuda")
    assert {trial.compute_device for trial in plan.trials.values()} == {"cuda"}
    assert not set(plan.trials) & set(a_plan().trials)


def test_an_id_stays_the_same_from_version_to_version() -> None:
    """If this fails, stored results are not found any more. Was that meant?"""
    assert a_trial().trial_id == "8d228ecc28670d4b"


def test_normalisation_is_the_data_sets_unless_it_is_set() -> None:
    data = some_data()
    assert a_trial(data).recipe.normalisation == data.normalisation
    given = a_trial(data, normalisation__mean=0.5).recipe.normalisation
    assert given == Normalisation((0.5,), data.normalisation.std)


def test_methods_train_the_classifier_for_equally_many_rounds() -> None:
    assert a_trial().recipe.rounds == 4
    assert a_trial(method="fedgan").recipe.rounds == 2 + 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split.classes_per_device": 12}, "12 classes per device: must be 1 t"),
        ({"split.devices": 0}, "0 devices: there must be at least 1"),
        ({"split.kind": "dirichlt"}, "kind 'dirichlt' is unknown; did you mean diric"),
        (
            {
                "split.kind": "dirichlet",
                "split.classes_per_device": None,
                "split.concentration": 0.0,
            },
            "Dirichlet concentration 0.0: must be above 0",
        ),
        ({"split.samples_per_device": 99998}, "ask for fewer"),
        ({"split.kind": None}, "split.kind is not set"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"rounds": True}, "rounds is True; it must be a whole number"),
        ({"rounds": 1}, "last_rounds is 2, more than rounds, which is 1; lower it"),
        ({"training.learning_rate": -1}, "training.learning_rate is -1; it must"),
        ({"test_images": 5}, "a subset of 5 images: must be 10"),
        ({"data": "cifar11"}, "'cifar11' is neither known nor a folder; did you"),
        ({"data": None}, "data is not set"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(settings: Settings, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        a_plan(settings)
    assert message in str(raised.value)


def test_an_error_of_a_trial_names_arm_and_split() -> None:
    arms = {"FedAvg": {}, "slow": {"split.devices": 0}}
    with pytest.raises(ConfigurationError, match="'slow', split 'two classes'"):
        a_plan(arms=arms)


def test_a_relative_setting_is_of_what_the_layers_before_it_have() -> None:
    tenth = {"training.learning_rate": Times(0.1, "training.learning_rate")}
    splits = {"two classes": {}, "fast": {"training.learning_rate": 0.7}}
    plan = a_plan(splits=splits, arms={"slow": tenth}, controls=())
    rates = [
        plan.trials[cell.trial_id].recipe.training.learning_rate for cell in plan.outline.cells
    ]
    assert rates[:2] == [0.005, 0.07]
    shown = plan.outline.experiment.arms["slow"]
    assert shown == {"training.learning_rate": "0.1x training.learning_rate"}
    with pytest.raises(ConfigurationError, match=r"training\.alpha has no number"):
        a_plan(arms={"one": {"training.momentum": Times(2, "training.alpha")}}, controls=())


def test_an_outline_comes_back_from_its_record() -> None:
    outline = a_plan(
        sweep=Sweep("hfmds.mu", "mu", (0.0, 1.0)),
        report="tsne",
        tsne=Tsne(("HFMDS",), (0.0, 2.0), 3),
        paper_numbers={"accuracy": {"HFMDS": {"two classes": PaperNumber(50.1, 2.0)}}},
    ).outline
    again = outline_from(outline.record())
    assert again.experiment == outline.experiment
    assert again.cells == outline.cells
    assert again.record() == outline.record()


def test_an_outline_of_another_version_is_refused() -> None:
    record = a_plan().outline.record()
    with pytest.raises(ConfigurationError, match="is of format 1, this program reads 2"):
        outline_from({**record, "format": 1})


def test_another_data_set_is_for_splits_that_name_none() -> None:
    experiment = an_experiment(splits={"twenty": {"data": "digits:20"}, "two classes": {}})
    plan = plan_trials(experiment, a_shelf(), "digits:18")
    by_split = {cell.split: plan.trials[cell.trial_id] for cell in plan.outline.cells}
    assert by_split["two classes"].recipe.model.height == 18
    assert by_split["twenty"].recipe.model.height == 20
    assert sorted(plan.outline.data) == ["digits:18", "digits:20"]


def write_pictures(folder: Path, brightness: int = 0) -> Path:
    """Plain pictures of two classes."""
    for part, count in (("train", 30), ("test", 3)):
        for number in range(2 * count):
            file = folder / part / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((16, 16), number + brightness, np.uint8)
            Image.fromarray(pixels).save(file)
    return folder


def test_folders_with_the_same_last_name_are_told_apart(tmp_path: Path) -> None:
    dark = write_pictures(tmp_path / "dark" / "pictures")
    light = write_pictures(tmp_path / "light" / "pictures", brightness=100)
    splits = {"light": {"data": str(light)}, "dark": {"data": str(dark)}}
    plan = a_plan({"test_images": 4}, splits=splits)
    digests = {trial.data_digest for trial in plan.trials.values()}
    assert len(digests) == 2
    assert {info["sha256"] for info in plan.outline.data.values()} == digests
    assert all(name.startswith("pictures") for name in plan.outline.data)


def test_a_folders_path_is_not_published(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "private" / "pictures")
    plan = plan_trials(an_experiment({"test_images": 4}), a_shelf(), str(folder))
    record = json.dumps(
        [plan.outline.record(), *(trial.record() for trial in plan.trials.values())]
    )
    assert "private" not in record
    assert plan.outline.experiment.settings["data"] == "pictures"
    assert next(iter(plan.trials.values())).data == str(folder)


def test_splits_are_drawn_once_where_they_do_not_differ() -> None:
    assert len(a_plan(sweep=Sweep("hfmds.mu", "mu", (3.0, 4.0))).outline.splits) == 1
    drawn = a_plan(sweep=Sweep("split.devices", "devices", (3, 4))).outline.splits
    assert [split.summary.counts.shape for split in drawn] == [(3, 10), (4, 10)]
    assert drawn[0].title == "digits:16, 2 classes per device, seed 0"
