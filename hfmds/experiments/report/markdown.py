"""Numbers and tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hfmds.experiments.experiment import PaperNumber
from hfmds.experiments.report.cell_results import Summary

NOTHING = "–"
"""The text for a missing number."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose other columns are numbers."""
    lines = [_line(header), _line(["---"] + ["---:"] * (len(header) - 1))]
    return "\n".join([*lines, *(_line(row) for row in rows)]) + "\n"


def percent(share: float | None) -> str:
    """Return 0.613 as 61.3."""
    return NOTHING if share is None else f"{100 * share:.1f}"


def points(share: float | None) -> str:
    """Return a difference of accuracies with its sign."""
    return NOTHING if share is None else f"{100 * share:+.1f}".replace("-", "−")


def number(value: float | None, decimals: int = 1) -> str:
    """Return a number, or the text for a missing one."""
    return NOTHING if value is None else f"{value:.{decimals}f}"


def score(summary: Summary) -> str:
    """Return mean and deviation of accuracies in percent, and the missing seeds."""
    if not summary.done and not summary.failed:
        return "not run"
    text = percent(summary.mean)
    if summary.deviation is not None:
        text += f" ± {100 * summary.deviation:.1f}"
    notes = []
    if summary.failed:
        notes.append(f"{summary.failed} of {summary.seeds} diverged")
    if missing := summary.seeds - summary.done - summary.failed:
        notes.append(f"{missing} of {summary.seeds} not run")
    return f"{text} ({', '.join(notes)})" if notes else text


def paper_number(number: PaperNumber | None) -> str:
    """Return a number as the paper prints it."""
    if number is None:
        return NOTHING
    mean = f"{number.mean:.2f}"
    return mean if number.deviation is None else f"{mean} ± {number.deviation:.2f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
