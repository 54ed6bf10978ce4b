"""Makes the trials of an experiment and checks all of them before the first one runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hfmds.algorithm.models.compute_device import find_compute_device
from hfmds.data.split_summary import SplitSummary, summarise_split
from hfmds.errors import ConfigurationError
from hfmds.experiments.experiment import Experiment
from hfmds.experiments.report.outline import Cell, DrawnSplit, Outline
from hfmds.experiments.settings import Settings, Times, Value, resolved
from hfmds.experiments.trials.loaded_data import DataShelf, LoadedData, folder_label
from hfmds.experiments.trials.trial import Trial, build_trial


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """All trials of an experiment, each once, in the order of their run."""

    outline: Outline
    trials: Mapping[str, Trial]  # by id

    def trials_of(self, arms: tuple[str, ...]) -> list[Trial]:
        """Return the trials that these arms need."""
        ids = dict.fromkeys(cell.trial_id for cell in self.outline.cells if cell.arm in arms)
        return [self.trials[trial_id] for trial_id in ids]


@dataclass(frozen=True, slots=True)
class _CellPlan:
    arm: str
    split: str
    value: Value
    seed: int
    settings: Mapping[str, Value]
    where: str  # names the place in errors


def plan_trials(
    experiment: Experiment,
    shelf: DataShelf,
    data: str | None = None,
    compute_device: str = "cpu",
) -> TrialPlan:
    """Make the trials of the experiment; `data` replaces the data set of the settings.

    A split that names its data set keeps it.
    """
    compute_device = find_compute_device(compute_device, "the compute device")
    if data is not None:
        experiment = replace(experiment, settings={**experiment.settings, "data": data})
    cells: list[Cell] = []
    trials: dict[str, Trial] = {}
    drawn: dict[tuple[str, bytes], DrawnSplit] = {}
    described: dict[str, dict[str, Any]] = {}
    summaries = _Summaries()
    for place in _places(experiment):
        if place.settings.get("data") is None:
            raise ConfigurationError(f"{place.where}: data is not set; name a data set")
        loaded = shelf.get(str(place.settings["data"]))
        trial = build_trial(place.settings, place.seed, loaded, place.where)
        trial = replace(trial, compute_device=compute_device)
        _require_rounds(experiment.last_rounds, trial, place.where)
        summary = summaries.of(trial, loaded, place.where)
        if place.seed == experiment.seeds[0]:
            # Equal splits are drawn once: most sweeps do not change the split.
            title = f"{loaded.label}, {trial.split.label}, seed {place.seed}"
            key = (place.split, summary.counts.tobytes())
            drawn.setdefault(key, DrawnSplit(place.split, title, summary))
        described[_name_of(loaded, described)] = loaded.record()
        trials.setdefault(trial.trial_id, trial)
        cells.append(Cell(place.arm, place.split, place.value, place.seed, trial.trial_id))
    outline = Outline(_published(experiment), described, tuple(cells), tuple(drawn.values()))
    return TrialPlan(outline, trials)


def _name_of(data: LoadedData, described: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the label, with a digest if another data set has the same label."""
    namesake = described.get(data.label)
    taken = namesake is not None and namesake["sha256"] != data.digest
    return f"{data.label} ({data.digest[:12]})" if taken else data.label


def _require_rounds(last: int, trial: Trial, where: str) -> None:
    rounds = trial.recipe.rounds - trial.recipe.method.preparation_rounds
    if last > rounds:
        raise ConfigurationError(
            f"{where}: last_rounds is {last}, more than rounds, which is {rounds}; lower it"
        )


def _published(experiment: Experiment) -> Experiment:
    """Return the experiment as reports show it: without the paths of folders."""

    def shown(settings: Settings) -> Settings:
        shown_values: Settings = {
            key: str(v) if isinstance(v, Times) else v for key, v in settings.items()
        }
        if "data" in settings:
            shown_values["data"] = folder_label(str(settings["data"]))
        return shown_values

    return replace(
        experiment,
        settings=shown(experiment.settings),
        splits={name: shown(own) for name, own in experiment.splits.items()},
        arms={name: shown(own) for name, own in experiment.arms.items()},
    )


def _places(experiment: Experiment) -> Iterator[_CellPlan]:
    """Yield the cells seed by seed, so that the table of one seed is complete early."""
    sweep = experiment.sweep
    values = sweep.values if sweep else (None,)
    for seed in experiment.seeds:
        for split, of_split in experiment.splits.items():
            for value in values:
                swept: Settings = {sweep.setting: value} if sweep else {}
                for arm, of_arm in experiment.arms.items():
                    where = f"arm {arm!r}, split {split!r}"
                    settings = resolved(where, experiment.settings, of_split, swept, of_arm)
                    yield _CellPlan(arm, split, value, seed, settings, where)


class _Summaries:
    """Summaries of splits; each split is made and checked once."""

    def __init__(self) -> None:
        self._made: dict[object, SplitSummary] = {}

    def of(self, trial: Trial, data: LoadedData, where: str) -> SplitSummary:
        key = (data.digest, trial.split, trial.seed, trial.test_images)
        if key not in self._made:
            try:
                shards = data.shards(trial.split, trial.seed)
                data.test(trial.test_images)
            except ConfigurationError as error:
                raise ConfigurationError(f"{where}: {error}") from error
            labels, names = data.dataset.train.labels, data.dataset.class_names
            self._made[key] = summarise_split(labels, shards, names)
        return self._made[key]
