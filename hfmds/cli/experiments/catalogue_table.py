"""The experiments that come with the program, as a table."""

from __future__ import annotations

from rich.table import Table

from hfmds.cli.tables.layout import add_row, new_table
from hfmds.experiments.loading import load, names


def experiments_table() -> Table:
    """Return one row for each experiment: its name, its subject, and its trials by size."""
    table = new_table()
    for heading in ("name", "of the paper", "what", "trials by size"):
        table.add_column(heading)
    for name in names():
        file = load(name)
        experiments = [file.experiment(size) for size in file.sizes]
        trials = ", ".join(f"{sized.size} {sized.cells}" for sized in experiments)
        add_row(table, name, experiments[0].paper, experiments[0].title, trials)
    return table
