"""The tables of an experiment: which numbers stand where."""

from __future__ import annotations

from collections.abc import Iterator

from hfmds.experiments.config import Experiment, PaperNumber
from hfmds.experiments.markdown import (
    NOTHING,
    number,
    paper_number,
    percent,
    points,
    score,
    table,
)
from hfmds.experiments.results import (
    CellResult,
    Results,
    mean,
    pool_number,
    summarise,
)
from hfmds.experiments.vocabulary import Value

Column = tuple[str, Value]
"""A split and a value of the swept setting."""


def columns_of(experiment: Experiment) -> list[Column]:
    """The columns of the table, in order."""
    values = experiment.sweep.values if experiment.sweep else (None,)
    return [(split, value) for split in experiment.splits for value in values]


def column_name(experiment: Experiment, column: Column) -> str:
    """What stands above a column."""
    split, value = column
    if experiment.sweep is None:
        return split
    swept = f"{experiment.sweep.label} = {_value(value)}"
    return swept if len(experiment.splits) == 1 else f"{split}, {swept}"


def paper_of(experiment: Experiment, measure: str, arm: str, split: str) -> PaperNumber | None:
    """The paper's number for a cell, if it has one."""
    cells = experiment.paper_numbers.get(measure, {}).get(arm, {})
    return cells.get(split, cells.get(""))


def accuracy_table(results: Results) -> str:
    """Mean and deviation over seeds; beside it the paper's numbers. The best is bold."""
    experiment = results.outline.experiment
    columns = columns_of(experiment)
    with_paper = bool(experiment.paper_numbers.get("accuracy")) and experiment.sweep is None
    header = ["accuracy (%)"]
    best: dict[Column, float] = {}
    for column in columns:
        header.append(column_name(experiment, column))
        if with_paper:
            header.append("paper")
        means = [summarise(results.at(arm, *column)).mean for arm in experiment.arms]
        best[column] = max((one for one in means if one is not None), default=float("nan"))
    rows = []
    for arm in experiment.arms:
        row = [_arm(experiment, arm)]
        for column in columns:
            summary = summarise(results.at(arm, *column))
            text = score(summary)
            row.append(f"**{text}**" if summary.mean == best[column] else text)
            if with_paper:
                row.append(paper_number(paper_of(experiment, "accuracy", arm, column[0])))
        rows.append(row)
    return table(header, rows)


def seeds_table(results: Results) -> str:
    """Every seed's number."""
    experiment = results.outline.experiment
    rows = []
    for column in columns_of(experiment):
        for arm in experiment.arms:
            cells = [_one(cell) for cell in results.at(arm, *column)]
            rows.append([f"{column_name(experiment, column)}: {arm}", *cells])
    return table(["accuracy (%)", *(f"seed {seed}" for seed in experiment.seeds)], rows)


def controls_table(results: Results) -> str:
    """How far each arm is above each control, seed by seed: mean, and the worst seed."""
    experiment = results.outline.experiment
    rows = []
    for column in columns_of(experiment):
        for arm in experiment.arms:
            if arm in experiment.controls:
                continue
            row = [f"{column_name(experiment, column)}: {arm}"]
            for control in experiment.controls:
                gains = [gain for gain in _gains(results, arm, control, column) if gain is not None]
                worst = min(gains) if gains else None
                row.append(f"{points(mean(gains))} ({points(worst)})" if gains else NOTHING)
            rows.append(row)
    header = ["points above (worst seed)", *experiment.controls]
    return table(header, rows)


def pools_table(results: Results) -> str:
    """Leakage and health of the last pool, as means over seeds; empty if no arm makes a pool."""
    experiment = results.outline.experiment
    rows = []
    for column in columns_of(experiment):
        for arm in experiment.arms:
            last = [one.pools[-1] for one in results.at(arm, *column) if one.pools]
            if not last:
                continue

            def of(group: str, name: str, last: list[dict[str, object]] = last) -> float | None:
                return mean(pool_number(pool, group, name) for pool in last)

            rows.append(
                [
                    f"{column_name(experiment, column)}: {arm}",
                    number(mean(float(pool["samples"]) for pool in last), 0),
                    number(of("leakage", "paired_mean")),
                    number(of("leakage", "nearest_mean")),
                    number(of("leakage", "nearest_max")),
                    percent(of("health", "accuracy")),
                    number(of("health", "gradient_ratio"), 2),
                    number(of("health", "real_margin"), 2),
                    number(of("health", "hard_margin"), 2),
                ]
            )
    header = [
        "last pool", "images", "PSNR to its real image (dB)", "to the nearest", "at most",
        "given its label (%)", "gradient ratio", "margin z", "margin z_h",
    ]  # fmt: skip
    return table(header, rows) if rows else ""


def psnr_values(results: Results, arm: str, split: str) -> list[float | None]:
    """The PSNR of each seed: the mean over all images of all its pools."""
    return [_mean_psnr(one) for one in results.at(arm, split)]


def failures(results: Results) -> Iterator[str]:
    """A line for each trial that diverged."""
    for one in results.cells:
        if one.status == "failed":
            cell = one.cell
            yield f"{cell.arm}, {cell.split}, seed {cell.seed} (trial {cell.trial_id}): {one.error}"


def _mean_psnr(one: CellResult) -> float | None:
    weights = [pool["samples"] for pool in one.pools]
    values = [pool["leakage"]["paired_mean"] for pool in one.pools]
    if not weights:
        return None
    return float(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))


def _gains(results: Results, arm: str, control: str, column: Column) -> list[float | None]:
    own = {one.cell.seed: one.score for one in results.at(arm, *column)}
    others = {one.cell.seed: one.score for one in results.at(control, *column)}
    gains: list[float | None] = []
    for seed, value in own.items():
        other = others.get(seed)
        gains.append(None if value is None or other is None else value - other)
    return gains


def _one(cell: CellResult) -> str:
    return "diverged" if cell.status == "failed" else percent(cell.score)


def _arm(experiment: Experiment, arm: str) -> str:
    is_control = arm in experiment.controls and arm != "FedAvg"
    return f"{arm} (control)" if is_control else arm


def _value(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
