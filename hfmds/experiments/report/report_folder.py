"""The report folder of an experiment: table, pictures and numbers from stored results."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from hfmds.data.split_summary import SplitSummary
from hfmds.errors import ConfigurationError, NotFound
from hfmds.experiments.report.cell_results import ExperimentResults, read_results
from hfmds.experiments.report.measurements import tsne_panels
from hfmds.experiments.report.outline import DrawnSplit, Outline, outline_from
from hfmds.experiments.report.page import numbers, table_text
from hfmds.experiments.trials.trial_folder import locked, read_json, write_json

OUTLINE, TABLE, NUMBERS = "outline.json", "table.md", "results.json"

Draw = Callable[[Path], None]


class DrawSplit(Protocol):
    """A function that draws a split; the caller supplies it."""

    def __call__(self, path: Path, summary: SplitSummary, title: str) -> None: ...


class ReportFolder:
    """The folder of an experiment's report."""

    def __init__(self, out: Path, name: str, size: str) -> None:
        self.path = out / f"{name}-{size}"
        self.trials = out / "trials"

    def keep_outline(self, outline: Outline) -> None:
        """Store the outline, so that a report can be written at any time."""
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):
            write_json(self.path / OUTLINE, outline.record())

    def outline(self) -> Outline:
        """Return the outline of the last start of the experiment."""
        try:
            record = read_json(self.path / OUTLINE)
        except ValueError as error:
            raise ConfigurationError(
                f"{self.path / OUTLINE} is damaged; run the experiment again: trials that are done "
                "are not repeated"
            ) from error
        if record is None:
            raise NotFound(
                f"there are no results in {self.path}; run the experiment first, or say with "
                "--out where its results are"
            )
        return outline_from(record)


def write_report(folder: ReportFolder, draw_split: DrawSplit | None = None) -> ExperimentResults:
    """Write the report of all results so far; show the splits if `draw_split` is given."""
    outline = folder.outline()
    with locked(folder.path):
        results = read_results(outline, folder.trials)
        pictures = _pictures(folder, results)
        splits: dict[str, DrawnSplit] = {}
        drawn = dict(pictures)
        if draw_split:
            splits = _split_names(outline)
            for name, drawn_split in splits.items():
                drawn[name] = partial(
                    draw_split, summary=drawn_split.summary, title=drawn_split.title
                )
        for name, draw in drawn.items():
            draft = folder.path / f".{name}"
            draw(draft)
            draft.replace(folder.path / name)
        page = folder.path / f".{TABLE}"
        page.write_text(table_text(results, list(pictures), splits), encoding="utf-8")
        page.replace(folder.path / TABLE)
        write_json(folder.path / NUMBERS, numbers(results))
    return results


def file_name(*words: str) -> str:
    """Return the name of a picture: "curves", "Dir(0.01)" gives curves-dir-0.01.png."""
    plain = re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower())
    return f"{plain.strip('-.')}.png"


def _split_names(outline: Outline) -> dict[str, DrawnSplit]:
    """Return the splits by the names of their pictures."""
    drawn: dict[str, DrawnSplit] = {}
    for drawn_split in outline.splits:
        name = file_name("split", drawn_split.split)
        if name in drawn:  # a sweep that changes the split
            name = file_name(
                "split", drawn_split.split, f"{len(drawn_split.summary.counts)} devices"
            )
        drawn[name] = drawn_split
    return drawn


def _pictures(folder: ReportFolder, results: ExperimentResults) -> dict[str, Draw]:
    # Imported late: matplotlib takes a second.
    from hfmds.experiments.report import plots

    experiment = results.outline.experiment
    pictures: dict[str, Draw] = {}
    if experiment.report == "cost":
        pictures["cost.png"] = partial(plots.draw_cost, results=results)
    if experiment.report == "tsne" and (panels := tsne_panels(results.outline, folder.path)):
        pictures["tsne.png"] = partial(plots.draw_tsne, experiment=experiment, panels=panels)
    if experiment.sweep:
        for split in experiment.splits:
            name = file_name("sweep", split)
            pictures[name] = partial(plots.draw_sweep, results=results, split=split)
        return pictures
    if experiment.report == "accuracy":
        pictures["bars.png"] = partial(plots.draw_bars, results=results)
    for split in experiment.splits:
        pictures[file_name("curves", split)] = partial(
            plots.draw_curves, results=results, split=split
        )
    return pictures
