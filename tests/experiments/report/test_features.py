"""The t-SNE figure: which images it shows, and as what."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from hfmds.experiments.experiment import Tsne
from hfmds.experiments.report.features import chosen_classes, tsne_panel
from hfmds.experiments.report.measurements import measure, tsne_panels
from hfmds.experiments.report.report_folder import ReportFolder, write_report
from hfmds.experiments.trials.running import run_trial
from hfmds.experiments.trials.trial_folder import Record, TrialFolder
from hfmds.experiments.trials.trial_plan import plan_trials
from tests.experiments.tiny import a_shelf, a_trial, an_experiment, some_data


def kinds(panel: Record) -> Counter[tuple[str, float | None]]:
    return Counter((point["kind"], point["mu"]) for point in panel["points"])


def a_panel(folder: Path, method: str, mus: list[float]) -> Record:
    data = some_data()
    trial = a_trial(data, method=method)
    own = TrialFolder(folder, trial.trial_id)
    run_trial(trial, data, own)
    final = own.final()
    assert final is not None
    return tsne_panel(trial, data, final, mus, list(range(10)))


def test_hfmds_is_shown_once_for_each_mu(tmp_path: Path) -> None:
    panel = a_panel(tmp_path, "hfmds", [0.0, 2.0])
    # Three devices with eight images each, three of them synthesised.
    assert kinds(panel) == {("real", None): 24, ("synthetic", 0.0): 9, ("synthetic", 2.0): 9}
    torch.set_num_threads(2)
    try:
        assert panel == a_panel(tmp_path, "hfmds", [0.0, 2.0])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_others_are_shown_by_their_last_pool(tmp_path: Path) -> None:
    assert kinds(a_panel(tmp_path, "fedmix", [0.0])) == {("real", None): 24, ("synthetic", None): 9}


def test_classes_are_chosen_by_the_seed() -> None:
    data = some_data()
    chosen = chosen_classes(data, 4, seed=0)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 4
    assert chosen == chosen_classes(data, 4, seed=0) != chosen_classes(data, 4, seed=1)


def test_panels_are_made_once_and_drawn(tmp_path: Path) -> None:
    shelf = a_shelf()
    plan = plan_trials(
        an_experiment(size="one", seeds=(0,), report="tsne", tsne=Tsne(("HFMDS",), (0.0, 2.0), 10)),
        shelf,
    )
    folder = ReportFolder(tmp_path, "tiny", "one")
    folder.keep_outline(plan.outline)
    for trial in plan.trials_of(("HFMDS",)):
        run_trial(trial, shelf.get(trial.data), TrialFolder(folder.trials, trial.trial_id))
    told: list[str] = []
    for _ in range(2):
        measure(plan, folder.path, folder.trials, shelf, told.append)
    assert told == ["laying out the features of HFMDS"]
    write_report(folder)
    assert "![tsne](tsne.png)" in (folder.path / "table.md").read_text()
    other = replace(plan.outline.experiment, tsne=Tsne(("HFMDS",), (0.0, 1.0), 10))
    assert list(tsne_panels(plan.outline, folder.path)) == ["HFMDS"]
    assert not tsne_panels(replace(plan.outline, experiment=other), folder.path)  # another mu
    assert (folder.path / "tsne.png").stat().st_size > 10_000
    assert json.loads((folder.path / "tsne.json").read_text())["HFMDS"]["classes"]["3"] == "3"
