"""The tables of an experiment's page."""

from __future__ import annotations

from collections.abc import Iterator

from hfmds.experiments.experiment import Experiment, Measure, PaperNumber
from hfmds.experiments.report.cell_results import (
    CellResult,
    ExperimentResults,
    deviation,
    mean,
    pool_number,
    summarise,
)
from hfmds.experiments.report.markdown import (
    NOTHING,
    number,
    paper_number,
    percent,
    points,
    score,
    table,
)
from hfmds.experiments.settings import Value
from hfmds.experiments.trials.trial_folder import Record

Column = tuple[str, Value]
"""A split and a value of the swept setting."""

_MOMENTS = 5  # rounds whose accuracy the convergence table shows


def columns_of(experiment: Experiment, split: str | None = None) -> list[Column]:
    """Return the columns of all tables, or of one split, in order."""
    values = experiment.sweep.values if experiment.sweep else (None,)
    splits = experiment.splits if split is None else [split]
    return [(result, value) for result in splits for value in values]


def value_text(value: Value) -> str:
    """Return a swept value as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def accuracy_tables(results: ExperimentResults) -> str:
    """Return mean and deviation over seeds: one table, or with a sweep one for each split."""
    experiment = results.outline.experiment
    if experiment.sweep is None:
        return _accuracy_table(results, columns_of(experiment))
    tables = []
    for split in experiment.splits:
        tables += [f"**{split}**\n", _accuracy_table(results, columns_of(experiment, split))]
    return "\n".join(tables)


def controls_table(results: ExperimentResults) -> str:
    """Return the lead of each arm over each control: the mean over seeds, and the worst seed."""
    experiment = results.outline.experiment
    rows = []
    for column in columns_of(experiment):
        for arm in experiment.arms:
            if arm in experiment.controls:
                continue
            row = [_row_name(experiment, arm, column)]
            for control in experiment.controls:
                gains = _gains(results, arm, control, column)
                text = f"{points(mean(gains))} ({points(min(gains))})" if gains else NOTHING
                row.append(text)
            rows.append(row)
    return table(["points above (worst seed)", *experiment.controls], rows)


def pools_table(results: ExperimentResults) -> str:
    """Return leakage and health of the last pool, as means over seeds; empty without pools."""
    experiment = results.outline.experiment
    rows = []
    for column in columns_of(experiment):
        for arm in experiment.arms:
            last = [result.pools[-1] for result in results.at(arm, *column) if result.pools]
            if last:
                rows.append([_row_name(experiment, arm, column), *_pool_numbers(last)])
    header = [
        "last pool", "images", "PSNR to its real image (dB)", "to the nearest", "at most",
        "given its label (%)", "gradient ratio", "margin z", "margin z_h",
    ]  # fmt: skip
    return table(header, rows) if rows else ""


def cost_table(results: ExperimentResults) -> str:
    """Return Table 3: PSNR over all synthetic images, and GFLOPs of a client and round."""
    experiment = results.outline.experiment
    header = ["PSNR (dB)"]
    for split in experiment.splits:
        header += [split, "paper"]
    header += ["GFLOPs per client and round", "paper"]
    rows = []
    for arm in experiment.arms:
        row = [_arm(experiment, arm)]
        for split in experiment.splits:
            values = psnr_values(results, arm, split)
            spread = deviation(values)
            text = number(mean(values), 2)
            row.append(text if spread is None else f"{text} ± {spread:.2f}")
            row.append(paper_number(paper_of(experiment, "psnr", arm, split)))
        row.append(number(giga(results.cost(arm), "per_round"), 2))
        row.append(paper_number(paper_of(experiment, "gflops", arm, "")))
        rows.append(row)
    return table(header, rows)


def cost_parts_table(results: ExperimentResults) -> str:
    """Return the parts of the GFLOPs."""
    experiment = results.outline.experiment
    rows = []
    for arm in experiment.arms:
        cost = results.cost(arm)
        if cost:
            with_pool = cost["rounds_with_pool"]
            without = cost["training_rounds"] - with_pool
            rows.append(
                [
                    _arm(experiment, arm),
                    number(giga(cost, "training"), 2) if without else NOTHING,
                    str(without),
                    number(giga(cost, "training_with_pool"), 2) if with_pool else NOTHING,
                    str(with_pool),
                    number(giga(cost, "synthesis"), 2),
                    str(cost["refreshes"]),
                    number(giga(cost, "preparation"), 2),
                    number(giga(cost, "per_round"), 2),
                ]
            )
    header = [
        "GFLOPs of one client", "training, a round without a pool", "such rounds", "with a pool",
        "such rounds", "synthesis, a refresh", "refreshes", "preparation, in all", "per round",
    ]  # fmt: skip
    return table(header, rows)


def convergence_table(results: ExperimentResults, split: str) -> str:
    """Return accuracy over rounds, and the round that reaches the first control's end."""
    experiment = results.outline.experiment
    curves = {arm: mean_curve(results.at(arm, split)) for arm in experiment.arms}
    longest = max((len(curve) for curve in curves.values()), default=0)
    moments = sorted({round(longest * part / _MOMENTS) for part in range(1, _MOMENTS + 1)} - {0})
    yardstick = next(iter(experiment.controls), None)
    goal = summarise(results.at(yardstick, split)).mean if yardstick else None
    header = [f"{split}: accuracy (%) after round", *map(str, moments)]
    if yardstick:
        header.append(f"round that first reaches {yardstick}'s end ({percent(goal)})")
    rows = []
    for arm, curve in curves.items():
        row = [_arm(experiment, arm)]
        row += [percent(curve[m - 1]) if m <= len(curve) else NOTHING for m in moments]
        if yardstick:
            reached = [t for t, value in enumerate(curve, 1) if goal is not None and value >= goal]
            row.append(str(reached[0]) if reached else "never")
        rows.append(row)
    return table(header, rows)


def mean_curve(cells: list[CellResult]) -> list[float]:
    """Return the accuracy after each round, as the mean over completed seeds."""
    curves = [result.curve for result in cells if result.status == "done"]
    return [sum(values) / len(values) for values in zip(*curves, strict=True)] if curves else []


def psnr_values(results: ExperimentResults, arm: str, split: str) -> list[float]:
    """Return the PSNR of each seed with pools: the mean over all images of all pools."""
    return [_mean_psnr(result) for result in results.at(arm, split) if result.pools]


def paper_of(experiment: Experiment, measure: Measure, arm: str, split: str) -> PaperNumber | None:
    """Return the paper's number for a cell, if it has one."""
    return experiment.paper_numbers.get(measure, {}).get(arm, {}).get(split)


def cost_of_synthesis(cost: Record) -> float:
    """The share of a round in billions of operations."""
    return float(cost["synthesis"] * cost["refreshes"] / cost["training_rounds"]) / 1e9


def cost_of_preparation(cost: Record) -> float:
    """The share of a round in billions of operations."""
    return float(cost["preparation"] / cost["training_rounds"]) / 1e9


def cost_of_training(cost: Record) -> float:
    """Return the rest of a round in billions of operations."""
    return float(cost["per_round"]) / 1e9 - cost_of_synthesis(cost) - cost_of_preparation(cost)


def giga(cost: Record | None, name: str) -> float | None:
    """Return a count of operations in billions."""
    return None if cost is None else float(cost[name]) / 1e9


def failures(results: ExperimentResults) -> Iterator[str]:
    """Yield a line for each trial that diverged."""
    for result in results.cells:
        if result.status == "failed":
            cell = result.cell
            row = _row_name(results.outline.experiment, cell.arm, (cell.split, cell.value))
            yield f"{row}, seed {cell.seed} (trial {cell.trial_id}): {result.error}"


def troubles(results: ExperimentResults) -> Iterator[str]:
    """Yield a line for each trial with faults of the server that did not stop it."""
    for result in results.cells:
        if result.troubles:
            cell = result.cell
            row = _row_name(results.outline.experiment, cell.arm, (cell.split, cell.value))
            yield (
                f"{row}, seed {cell.seed} (trial {cell.trial_id}), {len(result.troubles)} rounds; "
                f"first in {result.troubles[0]}"
            )


def _accuracy_table(results: ExperimentResults, columns: list[Column]) -> str:
    """Return our numbers next to the paper's, if it has any for these arms. The best is bold.

    The best of the cells whose seeds are all done: a mean over the easy ones proves nothing.
    """
    experiment = results.outline.experiment
    sweep = experiment.sweep
    with_paper = bool(experiment.paper_numbers.get("accuracy")) and sweep is None
    header = ["accuracy (%)"]
    best: dict[Column, float | None] = {}
    for column in columns:
        split, value = column
        header.append(f"{sweep.label} {value_text(value)}" if sweep else split)
        header += ["paper"] if with_paper else []
        means = [_whole_mean(results.at(arm, *column)) for arm in experiment.arms]
        best[column] = max((result for result in means if result is not None), default=None)
    rows = []
    for arm in experiment.arms:
        row = [_arm(experiment, arm)]
        for column in columns:
            cells = results.at(arm, *column)
            text, own = score(summarise(cells)), _whole_mean(cells)
            row.append(f"**{text}**" if own is not None and own == best[column] else text)
            if with_paper:
                row.append(paper_number(paper_of(experiment, "accuracy", arm, column[0])))
        rows.append(row)
    return table(header, rows)


def _whole_mean(cells: list[CellResult]) -> float | None:
    """Return the mean over seeds; None unless all of them are complete."""
    summary = summarise(cells)
    return summary.mean if summary.done == summary.seeds else None


def _pool_numbers(pools: list[Record]) -> list[str]:
    def of(group: str, name: str) -> float | None:
        return mean(pool_number(pool, group, name) for pool in pools)

    return [
        number(mean(float(pool["samples"]) for pool in pools), 0),
        number(of("leakage", "paired_mean")),
        number(of("leakage", "nearest_mean")),
        number(of("leakage", "nearest_max")),
        percent(of("health", "accuracy")),
        number(of("health", "gradient_ratio"), 2),
        number(of("health", "real_margin"), 2),
        number(of("health", "hard_margin"), 2),
    ]


def _mean_psnr(result: CellResult) -> float:
    images = sum(pool["samples"] for pool in result.pools)
    total = sum(pool["samples"] * pool["leakage"]["paired_mean"] for pool in result.pools)
    return float(total / images)


def _gains(results: ExperimentResults, arm: str, control: str, column: Column) -> list[float]:
    """Return the leads of the seeds that both arms have completed."""
    others = {result.cell.seed: result.score for result in results.at(control, *column)}
    return [
        result.score - other
        for result in results.at(arm, *column)
        if result.score is not None and (other := others[result.cell.seed]) is not None
    ]


def _row_name(experiment: Experiment, arm: str, column: Column) -> str:
    split, value = column
    if experiment.sweep is None:
        return f"{split}: {arm}"
    return f"{split}, {experiment.sweep.label} {value_text(value)}: {arm}"


def _arm(experiment: Experiment, arm: str) -> str:
    # FedAvg is a control and a method of the paper.
    is_control = arm in experiment.controls and arm != next(iter(experiment.controls))
    return f"{arm} (control)" if is_control else arm
