"""The outline of an experiment: its cells and their trials, stored as JSON with the results.

With it a report can be written again on another machine, without data set and experiment.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from hfmds.data.split_summary import SplitSummary
from hfmds.errors import ConfigurationError
from hfmds.experiments.experiment import Experiment, PaperNumber, Sweep, Tsne
from hfmds.experiments.settings import Value

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the table, for one seed."""

    arm: str
    split: str
    value: Value  # of the swept setting; None without a sweep
    seed: int
    trial_id: str


@dataclass(frozen=True, slots=True)
class DrawnSplit:
    """The split of one seed."""

    split: str
    title: str
    summary: SplitSummary


@dataclass(frozen=True, slots=True)
class Outline:
    """An experiment, its data sets, and the trial of each cell."""

    experiment: Experiment
    data: dict[str, dict[str, Any]]  # the loaded data sets by name
    cells: tuple[Cell, ...]
    splits: tuple[DrawnSplit, ...]

    def record(self) -> dict[str, Any]:
        """Return the outline for JSON."""
        return {
            "format": FORMAT,
            "experiment": dataclasses.asdict(self.experiment),
            "data": self.data,
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
            "splits": [
                {
                    "split": drawn.split,
                    "title": drawn.title,
                    "class_names": list(drawn.summary.class_names),
                    "available": drawn.summary.available,
                    "counts": drawn.summary.counts.tolist(),
                }
                for drawn in self.splits
            ],
        }


def outline_from(record: dict[str, Any]) -> Outline:
    """Return the outline of a record."""
    if record.get("format") != FORMAT:
        raise ConfigurationError(
            f"the outline is of format {record.get('format')}, this program reads {FORMAT}; run "
            "the experiment again: trials that are done are not repeated"
        )
    described = record["experiment"]
    sweep, tsne = described["sweep"], described["tsne"]
    experiment = Experiment(
        **{
            **described,
            "controls": tuple(described["controls"]),
            "seeds": tuple(described["seeds"]),
            "sweep": sweep and Sweep(sweep["setting"], sweep["label"], tuple(sweep["values"])),
            "tsne": tsne and Tsne(tuple(tsne["panels"]), tuple(tsne["mu"]), tsne["classes"]),
            "paper_numbers": {
                measure: {
                    arm: {split: PaperNumber(**number) for split, number in cells.items()}
                    for arm, cells in arms.items()
                }
                for measure, arms in described["paper_numbers"].items()
            },
        }
    )
    splits = tuple(
        DrawnSplit(
            drawn["split"],
            drawn["title"],
            SplitSummary(
                np.array(drawn["counts"], np.int64),
                tuple(drawn["class_names"]),
                drawn["available"],
            ),
        )
        for drawn in record["splits"]
    )
    return Outline(
        experiment, record["data"], tuple(Cell(**cell) for cell in record["cells"]), splits
    )
