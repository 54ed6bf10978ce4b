"""The page of an experiment, table.md, and its numbers for machines, results.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hfmds.experiments.experiment import Experiment
from hfmds.experiments.report.cell_results import ExperimentResults, summarise
from hfmds.experiments.report.outline import DrawnSplit
from hfmds.experiments.report.tables import (
    accuracy_tables,
    columns_of,
    controls_table,
    convergence_table,
    cost_parts_table,
    cost_table,
    failures,
    pools_table,
    psnr_values,
    troubles,
)
from hfmds.experiments.settings import Settings
from hfmds.experiments.trials.trial_folder import Record

_COST = (
    "PSNR is between images in [0, 1], to the real image each was made from (FedGAN: to a real one "
    "of its class; FedMix: to one of the averaged), as the mean over all images of all pools, ± "
    "deviation over seeds. GFLOPs are counted by torch's flop counter around the very calls that "
    "train and synthesise, for one client: matrix products and convolutions, forward and backward, "
    "two operations per multiply and add; no element-wise work, nothing of the server. Per round "
    "is the sum over the run, of rounds without and with a pool, of all refreshes, and of "
    "the rounds that train the GAN, divided by the rounds that train the classifier. The paper "
    "does not say what it counts.\n"
)
_CONTROLS = (
    "Points of accuracy above each control with the same seed, so on the same split and from the "
    "same first weights: the mean, and in brackets the seed where it is lowest. alpha below 1 also "
    "makes the step on real data smaller, and that alone may help or harm: *FedAvg lr/10* takes a "
    "tenth of the step in all rounds, *FedAvg lr/10 later* from the round of the first pool on, as "
    "HFMDS-FL does with alpha = 0.1; *noise pool* is a pool that carries nothing.\n"
)
_POOLS = (
    "Means over seeds, of the pool of the last refresh. PSNR is between images in [0, 1]; higher "
    "is more alike. *Given its label*: by the global model at that refresh. *Gradient ratio*: of "
    "the matching loss to L_C at the first step; 0.1 to 10 is sound. *Margin*: logit of the class "
    "minus the highest other, of real features z and hard features z_h.\n"
)


def table_text(
    results: ExperimentResults,
    pictures: Sequence[str],
    splits: Mapping[str, DrawnSplit] | None = None,
) -> str:
    """Return the Markdown page. `splits` have the names of their pictures."""
    experiment = results.outline.experiment
    parts = [_heading(results)]
    if experiment.report == "cost":
        parts += [cost_table(results), _COST, cost_parts_table(results)]
    if experiment.report == "convergence":
        parts += [convergence_table(results, split) for split in experiment.splits]
    if experiment.report in ("cost", "convergence", "tsne"):
        parts += [_shown(pictures), "## Accuracy\n"]
    parts += [accuracy_tables(results), _note(experiment)]
    if experiment.report == "accuracy":
        parts.append(_shown(pictures))
    if experiment.controls:
        parts += ["## Against the controls\n", controls_table(results), _CONTROLS]
    if pools := pools_table(results):
        parts += ["## The pools\n", pools, _POOLS]
    if failed := list(failures(results)):
        parts += ["## Diverged\n", "".join(f"- {line}\n" for line in failed)]
    if faults := list(troubles(results)):
        parts += ["## Faults that did not stop a run\n", "".join(f"- {line}\n" for line in faults)]
    if splits:
        parts += ["## The splits\n", *(_split(name, item) for name, item in splits.items())]
    parts += ["## Setting\n", _settings(results)]
    return "\n".join(parts)


def numbers(results: ExperimentResults) -> Record:
    """Return all numbers, for machines."""
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
        "psnr": [
            {"arm": arm, "split": split, "by_seed": values}
            for arm in experiment.arms
            for split in experiment.splits
            if (values := psnr_values(results, arm, split))
        ],
        "device_cost": {arm: results.cost(arm) for arm in experiment.arms if results.cost(arm)},
        "results": [
            {
                "arm": item.cell.arm,
                "split": item.cell.split,
                "value": item.cell.value,
                "seed": item.cell.seed,
                "trial": item.cell.trial_id,
                "status": item.status,
                "error": item.error,
                "accuracy": item.score,
                "curve": list(item.curve),
                "pools": list(item.pools),
                **({"troubles": list(item.troubles)} if item.troubles else {}),
            }
            for item in results.cells
        ],
        "made": results.made,
    }


def _heading(results: ExperimentResults) -> str:
    experiment = results.outline.experiment
    of = f" ({experiment.paper} of the paper)" if experiment.paper else ""
    lines = [f"# {experiment.title}{of}, size {experiment.size}", ""]
    if experiment.about:
        lines += [experiment.about.strip(), ""]
    if results.done < len(results.cells):
        lines += [f"**Not complete: {results.done} of {len(results.cells)} cells.**", ""]
    return "\n".join(lines)


def _shown(pictures: Sequence[str]) -> str:
    return "\n".join(f"![{name.removesuffix('.png')}]({name})\n" for name in pictures)


def _split(picture: str, drawn: DrawnSplit) -> str:
    return "\n".join([f"**{drawn.title}**\n", _shown([picture]), f"{drawn.summary.in_words()}\n"])


def _note(experiment: Experiment) -> str:
    text = f"Mean accuracy on test images over the last {experiment.last_rounds} rounds"
    if len(experiment.seeds) > 1:
        seeds = ", ".join(map(str, experiment.seeds))
        text += f"; mean ± standard deviation (of the sample) over seeds {seeds}"
        text += " (results.json has every seed)"
    text += ". Bold: the highest mean of those whose seeds are all done."
    if experiment.paper_numbers and experiment.size == "small":
        text += " The paper's numbers are of its full setting: compare orders, not values."
    return text + "\n"


def _settings(results: ExperimentResults) -> str:
    outline = results.outline
    experiment = outline.experiment
    lines = [
        f"- Data: {name}, {info['train_images']} training and {info['test_images']} test images "
        f"of {info['classes']} classes (sha256 {info['sha256'][:12]})."
        for name, info in outline.data.items()
    ]
    lines.append(f"- All trials: {_listed(experiment.settings)}.")
    for kind, named in (("split", experiment.splits), ("arm", experiment.arms)):
        lines += [
            f"- {kind.capitalize()} {name}: {_listed(settings)}."
            for name, settings in named.items()
            if settings
        ]
    if origins := list(results.made.values()):
        hours = sum(item["seconds"] for item in origins) / 3600
        versions = Counter(
            f"torch {item['torch']}, numpy {item['numpy']}, Python {item['python']}, code "
            f"{item['code']}"
            for item in origins
        )
        by = "; ".join(f"{count} by {version}" for version, count in versions.items())
        lines.append(f"- {len(origins)} different trials, {hours:.1f} hours of one core: {by}.")
    return "\n".join(lines) + "\n"


def _listed(settings: Settings) -> str:
    return ", ".join(f"`{key}: {value}`" for key, value in settings.items())
