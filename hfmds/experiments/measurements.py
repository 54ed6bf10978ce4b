"""What some reports need besides the trials' results: device costs, and points of t-SNE figures.

Made once, when the trials are done, and stored: a report is then written without data set or torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hfmds.experiments.loaded_data import DataShelf
from hfmds.experiments.plan import Plan
from hfmds.experiments.trial_folder import Record, TrialFolder, write_json
from hfmds.experiments.trials import Trial

TSNE = "tsne.json"


def measure(
    plan: Plan, report: Path, trials: Path, shelf: DataShelf, tell: Callable[[str], None]
) -> None:
    """Make what is missing; `tell` hears what is being made."""
    experiment = plan.outline.experiment
    if experiment.report == "cost":
        for arm in experiment.arms:
            trial = _first_trial(plan, arm)
            folder = TrialFolder(trials, trial.trial_id)
            if folder.result() and folder.cost() is None:
                tell(f"counting the operations of {arm}")
                folder.keep_cost(_cost(trial, shelf))
    if experiment.tsne:
        stored = read_tsne(report)
        for arm in experiment.tsne.panels:
            trial = _first_trial(plan, arm)
            known = {"trial": trial.trial_id, "tsne": asdict(experiment.tsne)}
            known = json.loads(json.dumps(known))  # tuples as the lists they are when read
            if stored.get(arm, {}).get("of") == known:
                continue
            tell(f"laying out the features of {arm}")
            panel = _panel(plan, trial, trials, shelf)
            if panel:
                stored[arm] = {"of": known, **panel}
                write_json(report / TSNE, stored)


def read_tsne(report: Path) -> dict[str, Record]:
    """Panels by arm, as far as they are made."""
    try:
        panels: dict[str, Record] = json.loads((report / TSNE).read_text())
    except FileNotFoundError:
        return {}
    return panels


def _first_trial(plan: Plan, arm: str) -> Trial:
    """Of the first split, value and seed."""
    cell = next(cell for cell in plan.outline.cells if cell.arm == arm)
    return plan.trials[cell.trial_id]


def _cost(trial: Trial, shelf: DataShelf) -> Record:
    from hfmds.experiments.flops import device_cost  # torch
    from hfmds.experiments.running import shards_of

    shards = shards_of(trial, shelf.get(trial.data))
    cost = device_cost(trial.recipe, next(iter(shards.values())))
    return {**asdict(cost), "per_round": cost.per_round}


def _panel(plan: Plan, trial: Trial, trials: Path, shelf: DataShelf) -> Record | None:
    from hfmds.experiments.features import chosen_classes, tsne_panel  # torch

    final, wanted = TrialFolder(trials, trial.trial_id).final(), plan.outline.experiment.tsne
    if final is None or wanted is None:
        return None
    data = shelf.get(trial.data)
    classes = chosen_classes(data, wanted.classes, trial.seed)
    names = [data.dataset.class_names[c] for c in classes]
    panel = tsne_panel(trial, data, final, wanted.mu, classes)
    return {"classes": dict(zip(map(str, classes), names, strict=True)), **panel}
