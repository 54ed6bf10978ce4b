"""The report of an experiment: its folder with table, pictures and numbers, from stored results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from hfmds.errors import NotFound
from hfmds.experiments.measurements import read_tsne
from hfmds.experiments.outline import Outline, outline_from
from hfmds.experiments.page import numbers, table_text
from hfmds.experiments.results import Results, read_results
from hfmds.experiments.trial_folder import write_json

OUTLINE, TABLE, NUMBERS = "outline.json", "table.md", "results.json"

Draw = Callable[[Path], None]


class ReportFolder:
    """Where an experiment's report is, in a folder of results."""

    def __init__(self, out: Path, name: str, size: str) -> None:
        self.path = out / f"{name}-{size}"
        self.trials = out / "trials"

    def keep_outline(self, outline: Outline) -> None:
        """Remember what was planned, so that a report can be written at any time."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / OUTLINE, outline.record())

    def outline(self) -> Outline:
        """What was planned when the experiment was last started."""
        try:
            return outline_from(json.loads((self.path / OUTLINE).read_text()))
        except FileNotFoundError:
            raise NotFound(
                f"there are no results in {self.path}; run the experiment first, or say with "
                "--out where its results are"
            ) from None


def write_report(folder: ReportFolder, more_pictures: Mapping[str, Draw] | None = None) -> Results:
    """Write what can be said so far; pictures drawn by others are shown on the page too."""
    results = read_results(folder.outline(), folder.trials)
    pictures = {**_pictures(folder, results), **(more_pictures or {})}
    for name, draw in pictures.items():
        draft = folder.path / f".{name}"
        draw(draft)
        draft.replace(folder.path / name)
    page = folder.path / f".{TABLE}"
    page.write_text(table_text(results, list(pictures)), encoding="utf-8")
    page.replace(folder.path / TABLE)
    write_json(folder.path / NUMBERS, numbers(results))
    return results


def file_name(*words: str) -> str:
    """A name for a picture: "curves", "Dir(0.01)" to curves-dir-0.01.png."""
    plain = re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower())
    return f"{plain.strip('-.')}.png"


def _pictures(folder: ReportFolder, results: Results) -> dict[str, Draw]:
    # matplotlib takes a second, for which nobody should wait who runs trials only
    from hfmds.experiments import plots

    experiment = results.outline.experiment
    pictures: dict[str, Draw] = {}
    if experiment.report == "cost":
        pictures["cost.png"] = partial(plots.draw_cost, results=results)
    if experiment.report == "tsne" and (panels := read_tsne(folder.path)):
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
