"""Draws a split: the number of images of each class on each device.

One column per device and one row per class, darker for more images, white for none. Bars are the
totals of devices and of classes; a class that no device holds is marked. Up to 100 devices and 100
classes have a label each, beyond that some of them.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hfmds.data.split_summary import SplitSummary

_DPI = 150
# In inches:
_LARGEST_CELL, _NUMBERED_CELL = 0.36, 0.3  # the latter has room for its number of images
_ROW_LABEL, _LABEL_DIGIT = 0.125, 0.06  # room a class's name needs, and a digit of a device's
_LONGEST_LABELLED_SIDE, _LONGEST_SIDE, _SHORTEST_SIDE = 12.5, 20.0, 2.0
_BARS, _COLOUR_BAR, _MARGIN = 0.8, 0.18, 1.6

_BAR_COLOUR, _LINE_COLOUR = "#8796a8", "#e6e6e6"
_UNUSED_COLOUR, _HATCH_COLOUR = "#c0392b", "#e9b5ae"
# From a green that is clearly not the white of zero.
_COLOURS = ListedColormap(colormaps["YlGnBu"](np.linspace(0.25, 1.0, 256)))


def draw_split(path: Path, summary: SplitSummary, title: str) -> None:
    """Write the picture as PNG; `title` names the data and the split."""
    devices, classes = summary.counts.shape
    across, down = _side(devices), _side(classes)
    names = 0.07 * max(len(name) for name in summary.class_names)
    figure = Figure(
        figsize=(across + _BARS + _COLOUR_BAR + _MARGIN + names, down + _BARS + _MARGIN),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        2, 3, width_ratios=(across, _BARS, _COLOUR_BAR), height_ratios=(_BARS, down)
    )
    cells = figure.add_subplot(grid[1, 0])
    _draw_cells(cells, summary)
    _label_devices(cells, devices, across / devices)
    _label_classes(cells, summary, down / classes)
    if min(across / devices, down / classes) >= _NUMBERED_CELL:
        _number_cells(cells, summary)
    _draw_device_totals(figure.add_subplot(grid[0, 0], sharex=cells), summary)
    _draw_class_totals(figure.add_subplot(grid[1, 1], sharey=cells), summary)
    figure.colorbar(
        cells.collections[0],
        cax=figure.add_subplot(grid[1, 2]),
        label="images (white: none)",
        ticks=MaxNLocator(8, integer=True, min_n_ticks=1),
    )
    figure.suptitle(f"{title}\nDevices hold {summary.totals}", fontsize="medium")
    figure.savefig(path, dpi=_DPI)


def _side(count: int) -> float:
    """Return the length of so many cells."""
    if count * _ROW_LABEL <= _LONGEST_LABELLED_SIDE:
        return min(max(count * _LARGEST_CELL, _SHORTEST_SIDE), _LONGEST_LABELLED_SIDE)
    return min(count * _ROW_LABEL, _LONGEST_SIDE)


def _draw_cells(axes: Axes, summary: SplitSummary) -> None:
    most = int(summary.counts.max())
    axes.pcolormesh(
        np.ma.masked_equal(summary.counts.T, 0),
        cmap=_COLOURS,
        # The square root, as a bubble's radius would be: few and fewer images can be told apart.
        norm=PowerNorm(0.5, vmin=min(1, most - 1), vmax=most),
        edgecolors=_LINE_COLOUR,
        linewidth=0.4,
    )
    axes.invert_yaxis()  # the first class on top
    axes.set_xlabel("device")
    axes.set_ylabel("class")


def _label_devices(axes: Axes, devices: int, width: float) -> None:
    needed = _LABEL_DIGIT * len(str(devices - 1))
    step = math.ceil(needed / width)
    shown = range(0, devices, step)
    axes.set_xticks([device + 0.5 for device in shown], [str(device) for device in shown])
    axes.tick_params(axis="x", length=0, labelsize=min(9.0, 5.0 * step * width / needed))


def _label_classes(axes: Axes, summary: SplitSummary, height: float) -> None:
    step = math.ceil(_ROW_LABEL / height)
    shown = summary.class_names[::step]
    axes.set_yticks([step * place + 0.5 for place in range(len(shown))], list(shown))
    axes.tick_params(axis="y", length=0, labelsize=min(9.0, 6.5 * step * height / _ROW_LABEL))
    for tick, name in zip(axes.get_yticklabels(), shown, strict=True):
        if name in summary.unused_classes:
            tick.set_color(_UNUSED_COLOUR)
    for place in _unused(summary):
        row = axes.axhspan(place, place + 1, facecolor="none", edgecolor=_HATCH_COLOUR, linewidth=0)
        row.set_hatch("////")


def _number_cells(axes: Axes, summary: SplitSummary) -> None:
    most = summary.counts.max()
    for (device, place), count in np.ndenumerate(summary.counts):
        if count:
            axes.text(
                device + 0.5,
                place + 0.5,
                str(count),
                ha="center",
                va="center",
                fontsize=7 if most < 10_000 else 5,
                color="white" if count > 0.35 * most else "black",
            )


def _draw_device_totals(axes: Axes, summary: SplitSummary) -> None:
    totals = summary.counts.sum(axis=1)
    axes.bar(np.arange(len(totals)) + 0.5, totals, width=0.8, color=_BAR_COLOUR)
    axes.set_ylabel("images")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_class_totals(axes: Axes, summary: SplitSummary) -> None:
    totals = summary.counts.sum(axis=0)
    axes.barh(np.arange(len(totals)) + 0.5, totals, height=0.8, color=_BAR_COLOUR)
    axes.set_xlabel("images")
    axes.xaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.tick_params(axis="y", labelleft=False, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    for place in _unused(summary):
        axes.text(
            0, place + 0.5, " no device", va="center", color=_UNUSED_COLOUR, fontsize="x-small"
        )


def _unused(summary: SplitSummary) -> list[int]:
    return [int(place) for place in np.flatnonzero(~summary.counts.any(axis=0))]
