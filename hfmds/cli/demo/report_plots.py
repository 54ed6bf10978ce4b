"""The pictures of the report, drawn without a display and without pyplot's global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from hfmds.algorithm.pixels import as_uint8
from hfmds.cli.watch_run import FollowedRun
from hfmds.domain.learning import LabelledImages, SyntheticBatch

_COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7")  # safe for colour-blind eyes
_GREY = "#666666"
_DPI = 150
MAX_COLUMNS = 20  # images of a pool shown for each class
_GAP = 2  # pixels between them


def draw_accuracy(path: Path, runs: Sequence[FollowedRun]) -> None:
    """Draw accuracy over rounds, with a mark at each new pool."""
    figure, axes = _figure(8.0, 4.5)
    for colour, followed in zip(_COLOURS, runs, strict=False):
        evaluated = [done for done in followed.rounds if done.evaluation]
        rounds = [done.number for done in evaluated]
        accuracies = [100 * share for share in followed.accuracies]
        axes.plot(rounds, accuracies, color=colour, marker="o", markersize=4, label=followed.label)
        refreshed = [done.number for done in evaluated if done.refreshed]
        for number in refreshed:
            label = "new pool" if number == refreshed[0] else None
            axes.axvline(number, color=colour, alpha=0.35, linestyle=":", label=label)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy on held-out images (%)")
    axes.set_ylim(0, 100)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("Accuracy of the averaged model after each round")
    _legend_outside(axes)
    _save(figure, path)


def draw_pool(
    path: Path,
    images: LabelledImages,
    *,
    what: str = "The last pool",
    of: int | None = None,
    columns: int = MAX_COLUMNS,
) -> None:
    """Draw images of a pool, one row for each class; the pool has `of` images."""
    classes = np.unique(images.labels).tolist()
    rows = [as_uint8(images.pixels[images.labels == c][:columns]) for c in classes]
    columns = max(len(row) for row in rows)
    _, channels, height, width = images.pixels.shape
    down, across = height + _GAP, width + _GAP
    canvas = np.full((len(rows) * down - _GAP, columns * across - _GAP, channels), 255, np.uint8)
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            canvas[r * down : r * down + height, c * across : c * across + width] = image.transpose(
                1, 2, 0
            )
    aspect = canvas.shape[0] / canvas.shape[1]
    figure, axes = _figure(8.0, max(1.5, 7.2 * aspect + 0.8))
    axes.imshow(
        canvas if channels == 3 else canvas[:, :, 0], cmap="gray", vmin=0, vmax=255,
        interpolation="nearest",
    )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([r * down + height / 2 for r in range(len(rows))], [str(c) for c in classes])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_ylabel("class")
    shown, of = sum(len(row) for row in rows), of or len(images)
    shown_note = "" if shown == of else f", {shown} of them shown"
    axes.set_title(f"{what}: {of} synthetic images{shown_note}")
    _save(figure, path)


def draw_psnr(path: Path, pool: SyntheticBatch, real_psnr: NDArray[np.float32]) -> None:
    """Draw the similarity of synthetic and real images, and of real images as the yardstick."""
    figure, axes = _figure(8.0, 4.5)
    curves = (
        ("synthetic to the real image it was paired with", pool.psnr_paired, _COLOURS[0]),
        ("synthetic to the nearest real image of its device", pool.psnr_nearest, _COLOURS[2]),
        ("real to the nearest other real image of its device", real_psnr, _GREY),
    )
    everything = np.concatenate([values for _, values, _ in curves])
    bins = np.linspace(everything.min(), everything.max() + 1e-3, 40)
    for label, values, colour in curves:
        if not len(values):
            continue
        weights = np.full(len(values), 100 / len(values))
        is_real = colour == _GREY
        axes.hist(
            values,
            bins=bins.tolist(),
            weights=weights,
            histtype="step" if is_real else "stepfilled",
            color=colour,
            alpha=1.0 if is_real else 0.5,
            label=f"{label}: mean {values.mean():.1f}, max {values.max():.1f} dB",
        )
    axes.set_xlabel("PSNR (dB); further right: more alike, more leaked")
    axes.set_ylabel("share of images (%)")
    axes.set_title("Measured leakage of the last pool")
    axes.margins(y=0.35)
    axes.legend(frameon=False, loc="upper right", fontsize="small")
    _save(figure, path)


def _figure(width_inches: float, height_inches: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _legend_outside(axes: Axes) -> None:
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=_DPI)
