"""The pictures of an experiment, drawn without a display and without pyplot's global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hfmds.experiments.experiment import Experiment
from hfmds.experiments.report.cell_results import ExperimentResults, deviation, mean, summarise
from hfmds.experiments.report.tables import (
    cost_of_preparation,
    cost_of_synthesis,
    cost_of_training,
    psnr_values,
    value_text,
)
from hfmds.experiments.trials.trial_folder import Record

_DPI = 150
_BAND = 0.13  # opacity of one deviation around a curve
_INK = "#333333"


@dataclass(frozen=True, slots=True)
class _Look:
    colour: str
    line: str = "-"
    width: float = 1.4


# The same arm looks the same in every picture. Colours of Okabe and Ito, safe for most eyes, and
# three more; what is not a method of the paper is grey.
_LOOKS = {
    "HFMDS-FL": _Look("#d55e00", width=2.4),
    "FMDS-FL": _Look("#e69f00", width=2.0),
    "FedAvg": _Look("#000000"),
    "FedProx": _Look("#0072b2"),
    "MOON": _Look("#56b4e9"),
    "FedGen": _Look("#009e73"),
    "FedMix": _Look("#cc79a7"),
    "FedGAN": _Look("#7b3294"),
    "L_C only": _Look("#a6761d"),
    "L_C + L_EFM": _Look("#66a61e"),
    "FedAvg lr/10": _Look("#555555", "--"),
    "FedAvg lr/10 later": _Look("#555555", "-."),
    "noise pool": _Look("#999999", ":", 1.8),
}
_OTHERS = ("#1b9e77", "#7570b3", "#e7298a", "#a6cee3", "#b15928", "#fb9a99")
_CLASSES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#666666",
            "#a6761d", "#66a61e")  # fmt: skip


def draw_curves(path: Path, results: ExperimentResults, split: str) -> None:
    """Draw accuracy over rounds: the mean over seeds, and a band of one deviation."""
    experiment = results.outline.experiment
    figure, axes = _figure(9.0, 4.8)
    for arm, look in _looks(experiment).items():
        curves = [result.curve for result in results.at(arm, split) if result.status == "done"]
        if not curves:
            continue
        values = 100 * np.array(curves)
        rounds, middle = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
        axes.plot(
            rounds, middle, color=look.colour, linestyle=look.line, linewidth=look.width, label=arm
        )
        if len(curves) > 1:
            spread = values.std(axis=0, ddof=1)
            axes.fill_between(
                rounds, middle - spread, middle + spread, color=look.colour, alpha=_BAND, lw=0
            )
    for number in _refreshes(results, split):
        axes.axvline(number, color="#bbbbbb", linewidth=0.8, zorder=0)
    axes.set_xlabel("round (grey lines: new pool of HFMDS-FL)")
    axes.set_ylabel("accuracy on test images (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.01)
    axes.set_ylim(bottom=0)
    axes.set_title(f"{split}: {_of_seeds(experiment)}")
    _legend_outside(axes)
    figure.savefig(path, dpi=_DPI)


def draw_bars(path: Path, results: ExperimentResults) -> None:
    """Draw the table as bars: deviations as lines, seeds as dots."""
    experiment = results.outline.experiment
    looks = _looks(experiment)
    splits = list(experiment.splits)
    figure, axes = _figure(max(6.0, 1.6 + 0.28 * len(splits) * (len(looks) + 1) + 2.0), 4.8)
    width = 0.86 / len(looks)
    for place, (arm, look) in enumerate(looks.items()):
        for group, split in enumerate(splits):
            cells = results.at(arm, split)
            x = group + (place - (len(looks) - 1) / 2) * width
            scores = [100 * result.score for result in cells if result.score is not None]
            _bar(axes, x, width, scores, look, arm if group == 0 else None)
            if any(result.status == "failed" for result in cells):
                axes.text(x, 0.5, "diverged", rotation=90, ha="center", va="bottom", fontsize=6)
    axes.set_xticks(range(len(splits)), splits)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(splits) - 0.5)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(f"accuracy (%), mean of the last {experiment.last_rounds} rounds")
    axes.set_title(f"{experiment.title} (dots: seeds)")
    _legend_outside(axes)
    figure.savefig(path, dpi=_DPI)


def draw_sweep(path: Path, results: ExperimentResults, split: str) -> None:
    """Draw accuracy over the swept setting."""
    experiment = results.outline.experiment
    assert experiment.sweep is not None
    values = experiment.sweep.values
    figure, axes = _figure(8.0, 4.5)
    looks = _looks(experiment)
    for place, (arm, look) in enumerate(looks.items()):
        summaries = [summarise(results.at(arm, split, value)) for value in values]
        shift = 0.03 * (place - (len(looks) - 1) / 2)  # so that deviations do not hide each other
        known = [(x, result) for x, result in enumerate(summaries) if result.mean is not None]
        axes.errorbar(
            [x + shift for x, _ in known],
            [100 * (result.mean or 0) for _, result in known],
            yerr=[100 * (result.deviation or 0) for _, result in known],
            color=look.colour,
            linestyle=look.line,
            linewidth=look.width,
            elinewidth=1.0,
            marker="o",
            markersize=4.5,
            capsize=2.5,
            label=arm,
        )
    axes.set_xticks(range(len(values)), [value_text(value) for value in values])
    axes.set_xlabel(experiment.sweep.label)
    axes.set_ylabel(f"accuracy (%), mean of the last {experiment.last_rounds} rounds")
    axes.set_title(f"{split}: {_of_seeds(experiment)}")
    _legend_outside(axes)
    figure.savefig(path, dpi=_DPI)


def draw_cost(path: Path, results: ExperimentResults) -> None:
    """Draw leakage, and the cost of a round for a device."""
    experiment = results.outline.experiment
    looks = _looks(experiment)
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    leakage, cost = figure.subplots(1, 2, width_ratios=(1.25, 1))
    sharing = [arm for arm in looks if any(psnr_values(results, arm, s) for s in experiment.splits)]
    width = 0.8 / max(1, len(sharing))
    for place, arm in enumerate(sharing):
        for group, split in enumerate(experiment.splits):
            x = group + (place - (len(sharing) - 1) / 2) * width
            values = psnr_values(results, arm, split)
            _bar(leakage, x, width, values, looks[arm], arm if group == 0 else None)
    _tidy(leakage)
    leakage.grid(visible=False, axis="x")
    leakage.set_xticks(range(len(experiment.splits)), list(experiment.splits))
    leakage.tick_params(axis="x", length=0)
    leakage.set_ylabel("PSNR to the paired real image (dB)")
    leakage.set_title("Leakage: higher is more alike")
    leakage.margins(y=0.22)
    leakage.legend(frameon=False, ncols=3, loc="upper center", fontsize="small")

    counted = [arm for arm in looks if results.cost(arm)]
    parts = (
        ("training", "#4c78a8", cost_of_training),
        ("synthesis, its share", "#f58518", cost_of_synthesis),
        ("GAN rounds, their share", "#b279a2", cost_of_preparation),
    )
    left = np.zeros(len(counted))
    for label, colour, part in parts:
        sizes = np.array([part(results.cost(arm) or {}) for arm in counted])
        cost.barh(range(len(counted)), sizes, left=left, color=colour, label=label, height=0.65)
        left += sizes
    for place, total in enumerate(left):
        cost.text(total, place, f" {total:.1f}", va="center", fontsize="small")
    cost.set_yticks(range(len(counted)), counted)
    cost.invert_yaxis()
    _tidy(cost)
    cost.grid(visible=False, axis="y")
    cost.margins(x=0.14)
    cost.set_xlabel("GFLOPs per client and round")
    cost.set_title("Computation on a device")
    cost.legend(
        frameon=False, fontsize="small", ncols=3, loc="upper center", bbox_to_anchor=(0.45, -0.12)
    )
    figure.savefig(path, dpi=_DPI)


def draw_tsne(path: Path, experiment: Experiment, panels: Mapping[str, Record]) -> None:
    """Draw real images light and synthetic ones dark; HFMDS-FL is darker for larger mu."""
    figure = Figure(figsize=(0.4 + 4.3 * len(panels), 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    plots = np.atleast_1d(np.array(figure.subplots(1, len(panels))))
    names: dict[str, str] = {}
    shown_mus: list[float] = []
    for axes, (arm, panel) in zip(plots, panels.items(), strict=True):
        names |= panel["classes"]
        colours = dict(zip(panel["classes"], _CLASSES, strict=False))
        points = panel["points"]
        mus = sorted({p["mu"] for p in points if p["mu"] is not None})
        shown_mus = mus or shown_mus
        for real in (True, False):
            own = [p for p in points if (p["kind"] == "real") == real]
            axes.scatter(
                [p["x"] for p in own],
                [p["y"] for p in own],
                s=9 if real else 16,
                c=[_shade(colours[str(p["class"])], real, p["mu"], mus) for p in own],
                marker="o" if real else "D",
                linewidths=0 if real else 0.3,
                edgecolors="none" if real else "white",
            )
        axes.set_title(arm)
        axes.set_xticks([])
        axes.set_yticks([])
    handles = [
        Line2D([], [], linestyle="", marker="o", color=colour, label=name)
        for name, colour in zip(names.values(), _CLASSES, strict=False)
    ]
    handles.append(
        Line2D([], [], linestyle="", marker="o", color=_light(_INK, 0.65), ms=4, label="real")
    )
    handles.append(
        Line2D([], [], linestyle="", marker="D", color="#777777", ms=5, label="synthetic")
    )
    handles += [
        Line2D([], [], linestyle="", marker="D", color=_shade("#777777", False, mu, shown_mus),
               ms=5, label=f"mu = {mu:g}")
        for mu in shown_mus
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    title = "Features of real images (light) and of synthetic ones, by t-SNE"
    figure.suptitle(f"{title}; darker: larger mu" if shown_mus else title, fontsize="medium")
    figure.savefig(path, dpi=_DPI)


# --- parts --------------------------------------------------------------------------------------


def _looks(experiment: Experiment) -> dict[str, _Look]:
    others = iter(_OTHERS * len(experiment.arms))
    return {arm: _LOOKS.get(arm) or _Look(next(others)) for arm in experiment.arms}


def _figure(width_inches: float, height_inches: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _tidy(axes)
    return figure, axes


def _of_seeds(experiment: Experiment) -> str:
    count = len(experiment.seeds)
    return "one seed" if count == 1 else f"mean and deviation over {count} seeds"


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e3e3e3", linewidth=0.6)
    axes.set_axisbelow(True)


def _legend_outside(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:  # none before the first trial is done
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _bar(
    axes: Axes, x: float, width: float, values: Sequence[float], look: _Look, label: str | None
) -> None:
    axes.bar(
        x,
        mean(values) or 0.0,
        width * 0.9,
        yerr=deviation(values),
        color=look.colour,
        alpha=0.8,
        hatch="////" if look.line != "-" else None,
        edgecolor="white",
        linewidth=0,
        error_kw={"elinewidth": 1.0, "ecolor": _INK, "capsize": 1.5},
        label=label,
    )
    axes.scatter(
        [x] * len(values), values, s=9, color="white", edgecolors=_INK, linewidths=0.6, zorder=3
    )


def _refreshes(results: ExperimentResults, split: str) -> list[int]:
    """Return the rounds with a new pool of the first arm that has several pools."""
    for arm in results.outline.experiment.arms:
        for result in results.at(arm, split):
            if len(result.pools) > 1:
                return [pool["round"] for pool in result.pools]
    return []


def _light(colour: str, by: float) -> tuple[float, float, float]:
    red, green, blue = (part + (1 - part) * by for part in to_rgb(colour))
    return red, green, blue


def _shade(
    colour: str, is_real: bool, mu: float | None, mus: Sequence[float]
) -> tuple[float, float, float]:
    if is_real:
        return _light(colour, 0.7)
    if mu is None or len(mus) < 2:
        return _light(colour, 0.0)
    dark = mus.index(mu) / (len(mus) - 1)  # 0: the class's colour, lightened; 1: nearly black
    red, green, blue = (part * (1 - 0.8 * dark) for part in _light(colour, 0.35 * (1 - dark)))
    return red, green, blue
