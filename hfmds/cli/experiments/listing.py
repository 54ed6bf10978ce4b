"""The experiments that come with the program, as a table."""

from __future__ import annotations

from rich.table import Table

from hfmds.cli.tables.runs import add_row, new_table
from hfmds.experiments import library
from hfmds.experiments.config import read_experiment, sizes_of


def experiments_table() -> Table:
    """Name, what it is, and how many trials it takes in each size."""
    table = new_table()
    for heading in ("name", "of the paper", "what", "trials by size"):
        table.add_column(heading)
    for name in library.names():
        path = library.find(name)
        experiments = [read_experiment(path, size) for size in sizes_of(path)]
        trials = ", ".join(f"{one.size} {one.cells}" for one in experiments)
        add_row(table, name, experiments[0].paper, experiments[0].title, trials)
    return table
