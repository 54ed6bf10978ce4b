"""Measurements that some reports need: device costs, and the points of t-SNE figures.

Made once, when the trials are done, and stored: a report is then written without data set or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hfmds.experiments.report.outline import Outline
from hfmds.experiments.trials.loaded_data import DataShelf
from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.trial_folder import Record, TrialFolder, locked, read_json, write_json
from hfmds.experiments.trials.trial_plan import TrialPlan

TSNE = "tsne.json"


def measure(
    plan: TrialPlan, report: Path, trials: Path, shelf: DataShelf, tell: Callable[[str], None]
) -> None:
    """Make the missing measurements; `tell` takes a line for each."""
    experiment = plan.outline.experiment
    if experiment.report == "cost":
        for arm in experiment.arms:
            trial = _first_trial(plan, arm)
            folder = TrialFolder(trials, trial.trial_id)
            with folder.locked():
                if folder.result() and folder.cost() is None:
                    tell(f"counting the operations of {arm}")
                    folder.keep_cost(_cost(trial, shelf))
    if experiment.tsne:
        with locked(report):
            _lay_out(plan, report, trials, shelf, tell)


def tsne_panels(outline: Outline, report: Path) -> dict[str, Record]:
    """Return the stored panels by arm, if seed, mu and classes are those of the outline."""
    wanted = outline.experiment.tsne.panels if outline.experiment.tsne else ()
    try:
        stored = read_json(report / TSNE) or {}
    except ValueError:  # a damaged file counts as absent
        return {}
    return {
        arm: stored[arm]
        for arm in wanted
        if arm in stored and stored[arm].get("of") == _subject(outline, arm)
    }


def _lay_out(
    plan: TrialPlan, report: Path, trials: Path, shelf: DataShelf, tell: Callable[[str], None]
) -> None:
    """Make the missing panels."""
    outline = plan.outline
    panels = tsne_panels(outline, report)
    for arm in outline.experiment.tsne.panels if outline.experiment.tsne else ():
        if arm in panels:
            continue
        tell(f"laying out the features of {arm}")
        panel = _panel(plan, _first_trial(plan, arm), trials, shelf)
        if panel:
            panels[arm] = {"of": _subject(outline, arm), **panel}
            write_json(report / TSNE, panels)


def _subject(outline: Outline, arm: str) -> Record:
    """Return the subject of a panel for JSON."""
    assert outline.experiment.tsne is not None
    tsne = asdict(outline.experiment.tsne)
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in tsne.items()}
    return {"trial": _first_trial_id(outline, arm), "tsne": lists}


def _first_trial(plan: TrialPlan, arm: str) -> Trial:
    return plan.trials[_first_trial_id(plan.outline, arm)]


def _first_trial_id(outline: Outline, arm: str) -> str:
    """Return the trial of an arm's first split, value and seed."""
    return next(cell.trial_id for cell in outline.cells if cell.arm == arm)


def _cost(trial: Trial, shelf: DataShelf) -> Record:
    from hfmds.experiments.report.flops import device_cost  # imports torch
    from hfmds.experiments.trials.running import shards_of

    shards = shards_of(trial, shelf.get(trial.data))
    cost = device_cost(trial.recipe, next(iter(shards.values())))
    return {**asdict(cost), "per_round": cost.per_round}


def _panel(plan: TrialPlan, trial: Trial, trials: Path, shelf: DataShelf) -> Record | None:
    from hfmds.experiments.report.features import chosen_classes, tsne_panel  # imports torch

    final, wanted = TrialFolder(trials, trial.trial_id).final(), plan.outline.experiment.tsne
    if final is None or wanted is None:
        return None
    data = shelf.get(trial.data)
    classes = chosen_classes(data, wanted.classes, trial.seed)
    names = [data.dataset.class_names[c] for c in classes]
    panel = tsne_panel(trial, data, final, wanted.mu, classes)
    return {"classes": dict(zip(map(str, classes), names, strict=True)), **panel}
