"""What came of an experiment's trials, cell by cell. Numbers, no looks."""

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
    """One cell for one seed: the rounds of its trial, as far as they are known."""

    cell: Cell
    status: str  # "done", "failed" or "missing"
    error: str | None
    curve: tuple[float, ...]  # accuracy in [0, 1] after each round that trained the classifier
    pools: tuple[Record, ...]  # one per refresh
    score: float | None  # mean accuracy of the last rounds; None unless done
    troubles: tuple[str, ...] = ()  # what the server could not do in a round, and went on


@dataclass(frozen=True, slots=True)
class Summary:
    """Several seeds of one cell."""

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
    costs: dict[str, Record]  # by trial: what it costs a device, where it was counted

    def at(self, arm: str, split: str, value: Value = None) -> list[CellResult]:
        """One cell, all seeds."""
        return [
            one
            for one in self.cells
            if (one.cell.arm, one.cell.split, one.cell.value) == (arm, split, value)
        ]

    def cost(self, arm: str) -> Record | None:
        """What an arm costs a device, counted at its first cell."""
        cell = next(one.cell for one in self.cells if one.cell.arm == arm)
        return self.costs.get(cell.trial_id)

    @property
    def done(self) -> int:
        """Cells that are at their end, well or not."""
        return sum(one.status != "missing" for one in self.cells)


def read_results(outline: Outline, trials: Path) -> ExperimentResults:
    """What is stored of the experiment's trials."""
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
    """Mean and deviation over the seeds that are done."""
    scores = [one.score for one in results]
    return Summary(
        seeds=len(results),
        done=sum(one.status == "done" for one in results),
        failed=sum(one.status == "failed" for one in results),
        mean=mean(scores),
        deviation=deviation(scores),
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def deviation(values: Iterable[float | None]) -> float | None:
    """Of those that are there, as a sample."""
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) > 1 else None


def pool_number(pool: Record, group: str, name: str) -> float | None:
    """A number of a pool's leakage or health, if it has one."""
    numbers: dict[str, Any] = pool.get(group) or {}
    value = numbers.get(name)
    return None if value is None else float(value)


def _cell_result(cell: Cell, result: Record | None, last_rounds: int) -> CellResult:
    if result is None:
        return CellResult(cell, "missing", None, (), (), None)
    trained = result["rounds"][result["preparation_rounds"] :]
    curve = tuple(one["accuracy"] for one in trained)
    pools = tuple(
        {"round": one["round"], **one["pool"]} for one in result["rounds"] if "pool" in one
    )
    done = result["status"] == "done"
    score = fmean(curve[-last_rounds:]) if done else None
    troubles = tuple(
        f"round {one['round']}: {one['trouble']}" for one in result["rounds"] if "trouble" in one
    )
    return CellResult(cell, result["status"], result["error"], curve, pools, score, troubles)
