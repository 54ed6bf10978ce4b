"""The results of an experiment's cells, with means and deviations over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hfmds.experiments.report.outline import Cell, Outline
from hfmds.experiments.settings import Value
from hfmds.experiments.trials.trial_folder import Record, TrialFolder


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of one cell and seed, as far as it is known."""

    cell: Cell
    status: str  # "done", "failed" or "missing"
    error: str | None
    curve: tuple[float, ...]  # accuracy in [0, 1] after each round that trained the classifier
    pools: tuple[Record, ...]  # one per refresh
    score: float | None  # mean accuracy of the last rounds; None unless done
    troubles: tuple[str, ...] = ()  # faults of the server that did not stop the run


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one cell over its seeds."""

    seeds: int
    done: int
    failed: int
    mean: float | None
    deviation: float | None  # of the sample, divided by n - 1; None for fewer than two


@dataclass(frozen=True, slots=True)
class ExperimentResults:
    """All cells of an experiment."""

    outline: Outline
    cells: tuple[CellResult, ...]
    made: dict[str, Record]  # by trial: versions and seconds
    costs: dict[str, Record]  # by trial: the counted cost for a device

    def at(self, arm: str, split: str, value: Value = None) -> list[CellResult]:
        """Return the results of one cell for all seeds."""
        return [
            item
            for item in self.cells
            if (item.cell.arm, item.cell.split, item.cell.value) == (arm, split, value)
        ]

    def cost(self, arm: str) -> Record | None:
        """Return the cost of an arm for a device, counted at its first cell."""
        cell = next(item.cell for item in self.cells if item.cell.arm == arm)
        return self.costs.get(cell.trial_id)

    @property
    def done(self) -> int:
        """The number of cells whose trial has ended, well or not."""
        return sum(item.status != "missing" for item in self.cells)


def read_results(outline: Outline, trials: Path) -> ExperimentResults:
    """Read the stored results of the experiment's trials."""
    folders = {cell.trial_id: TrialFolder(trials, cell.trial_id) for cell in outline.cells}
    stored = {trial_id: folder.result() for trial_id, folder in folders.items()}
    made = {trial_id: folder.made() for trial_id, folder in folders.items()}
    costs = {trial_id: folder.cost() for trial_id, folder in folders.items()}
    last = outline.experiment.last_rounds
    return ExperimentResults(
        outline,
        tuple(_cell_result(cell, stored[cell.trial_id], last) for cell in outline.cells),
        {trial_id: record for trial_id, record in made.items() if record},
        {trial_id: record for trial_id, record in costs.items() if record},
    )


def summarise(results: Sequence[CellResult]) -> Summary:
    """Return mean and deviation over the completed seeds."""
    scores = [item.score for item in results]
    return Summary(
        seeds=len(results),
        done=sum(item.status == "done" for item in results),
        failed=sum(item.status == "failed" for item in results),
        mean=mean(scores),
        deviation=deviation(scores),
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def deviation(values: Iterable[float | None]) -> float | None:
    """Return the deviation of the known values as a sample."""
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) > 1 else None


def pool_number(pool: Record, group: str, name: str) -> float | None:
    """Return a number of a pool's leakage or health, if it has one."""
    numbers: dict[str, Any] = pool.get(group) or {}
    value = numbers.get(name)
    return None if value is None else float(value)


def _cell_result(cell: Cell, result: Record | None, last_rounds: int) -> CellResult:
    if result is None:
        return CellResult(cell, "missing", None, (), (), None)
    trained = result["rounds"][result["preparation_rounds"] :]
    curve = tuple(item["accuracy"] for item in trained)
    pools = tuple(
        {"round": item["round"], **item["pool"]} for item in result["rounds"] if "pool" in item
    )
    done = result["status"] == "done"
    score = fmean(curve[-last_rounds:]) if done else None
    troubles = tuple(
        f"round {item['round']}: {item['trouble']}"
        for item in result["rounds"]
        if "trouble" in item
    )
    return CellResult(cell, result["status"], result["error"], curve, pools, score, troubles)
