"""The report of an experiment: its folder with table, pictures and numbers, from stored results."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hfmds.errors import NotFound
from hfmds.experiments.config import Experiment
from hfmds.experiments.outline import Outline, outline_from
from hfmds.experiments.results import Results, read_results, summarise
from hfmds.experiments.tables import (
    accuracy_table,
    columns_of,
    controls_table,
    failures,
    pools_table,
    seeds_table,
)
from hfmds.experiments.trial_folder import Record

OUTLINE, TABLE, NUMBERS = "outline.json", "table.md", "results.json"


class ReportFolder:
    """Where an experiment's report is, in a folder of results."""

    def __init__(self, out: Path, name: str, size: str) -> None:
        self.path = out / f"{name}-{size}"
        self.trials = out / "trials"

    def keep_outline(self, outline: Outline) -> None:
        """Remember what was planned, so that a report can be written at any time."""
        self.path.mkdir(parents=True, exist_ok=True)
        write(self.path / OUTLINE, json.dumps(outline.record(), indent=1) + "\n")

    def outline(self) -> Outline:
        """What was planned when the experiment was last started."""
        try:
            return outline_from(json.loads((self.path / OUTLINE).read_text()))
        except FileNotFoundError:
            raise NotFound(
                f"there are no results of it in {self.path}; run the experiment first, or say "
                "with --out where its results are"
            ) from None

    def results(self) -> Results:
        """What there is so far."""
        return read_results(self.outline(), self.trials)


def write(path: Path, text: str) -> None:
    """Replace a file at once."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def write_report(folder: ReportFolder) -> Results:
    """Write table and numbers of what there is."""
    results = folder.results()
    write(folder.path / TABLE, table_text(results))
    write(folder.path / NUMBERS, json.dumps(numbers(results), indent=1) + "\n")
    return results


def table_text(results: Results) -> str:
    """The Markdown page."""
    experiment = results.outline.experiment
    parts = [_heading(results), accuracy_table(results), _note(experiment)]
    if experiment.controls:
        parts += ["## Against the controls\n", controls_table(results), _CONTROLS]
    parts += ["## Every seed\n", seeds_table(results)]
    if pools := pools_table(results):
        parts += ["## The pools\n", pools, _POOLS]
    if failed := list(failures(results)):
        parts += ["## Diverged\n", "".join(f"- {line}\n" for line in failed)]
    parts += ["## Setting\n", _settings(results)]
    return "\n".join(parts)


def numbers(results: Results) -> Record:
    """Everything, for machines."""
    experiment = results.outline.experiment
    return {
        **results.outline.record(),
        "summary": [
            {
                "arm": arm,
                "split": split,
                "value": value,
                "accuracy_mean": summary.mean,
                "accuracy_deviation": summary.deviation,
                "seeds": summary.seeds,
                "done": summary.done,
                "diverged": summary.failed,
            }
            for split, value in columns_of(experiment)
            for arm in experiment.arms
            for summary in [summarise(results.at(arm, split, value))]
        ],
        "results": [
            {
                "arm": one.cell.arm,
                "split": one.cell.split,
                "value": one.cell.value,
                "seed": one.cell.seed,
                "trial": one.cell.trial_id,
                "status": one.status,
                "error": one.error,
                "accuracy": one.score,
                "curve": list(one.curve),
                "pools": list(one.pools),
            }
            for one in results.cells
        ],
        "made": results.made,
    }


_CONTROLS = (
    "Points of accuracy above each control with the same seed, so on the same split and from the "
    "same first weights: the mean, and in brackets the seed where it is lowest. alpha below 1 also "
    "makes the step on real data smaller, which alone helps under skew; *FedAvg lr/10* is that "
    "without a pool, *noise pool* is a pool that carries nothing.\n"
)
_POOLS = (
    "Means over seeds, of the pool of the last refresh. PSNR is between images in [0, 1]; higher "
    "is more alike. *Given its label*: by the global model at that refresh. *Gradient ratio*: of "
    "the matching loss to L_C at the first step; 0.1 to 10 is sound. *Margin*: logit of the class "
    "minus the highest other, of real features z and hard features z_h.\n"
)


def _heading(results: Results) -> str:
    experiment = results.outline.experiment
    of = f" ({experiment.paper} of the paper)" if experiment.paper else ""
    lines = [f"# {experiment.title}{of}, size {experiment.size}", ""]
    if experiment.about:
        lines += [experiment.about.strip(), ""]
    if results.done < len(results.cells):
        lines += [f"**Not complete: {results.done} of {len(results.cells)} trials.**", ""]
    return "\n".join(lines)


def _note(experiment: Experiment) -> str:
    seeds = ", ".join(map(str, experiment.seeds))
    text = (
        f"Mean accuracy of the last {experiment.last_rounds} rounds; mean ± standard deviation (of "
        f"the sample) over seeds {seeds}. Bold: the highest mean."
    )
    if experiment.paper_numbers and experiment.size == "small":
        text += " The paper's numbers are of its full setting: compare orders, not values."
    return text + "\n"


def _settings(results: Results) -> str:
    outline = results.outline
    lines = [
        f"- Data: {name}, {info['train_images']} training and {info['test_images']} test images "
        f"of {info['classes']} classes (sha256 {info['sha256'][:12]})."
        for name, info in outline.data.items()
    ]
    made = list(results.made.values())
    shared = ", ".join(f"`{key}: {value}`" for key, value in outline.experiment.settings.items())
    lines.append(f"- Of all trials, unless a split or arm says otherwise: {shared}.")
    for kind, named in (("split", outline.experiment.splits), ("arm", outline.experiment.arms)):
        for name, settings in named.items():
            own = ", ".join(f"`{key}: {value}`" for key, value in settings.items())
            lines.append(f"- {kind.capitalize()} {name}: {own}.")
    if made:
        minutes = sum(one["seconds"] for one in made) / 60
        versions = Counter(
            f"torch {one['torch']}, numpy {one['numpy']}, Python {one['python']}" for one in made
        )
        lines.append(
            f"- {len(made)} trials, {minutes:.0f} minutes of one core each after the other; by "
            f"{'; '.join(versions)}."
        )
    return "\n".join(lines) + "\n"
