"""The paper's figure of convergence: the trials of table2, round by round."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    ALL_METHODS,
    CONTROLS,
    LAST_ROUNDS,
    SETTINGS,
    three_splits,
)
from hfmds.experiments.catalogue.paper import SIZES as SIZES
from hfmds.experiments.experiment import Experiment


def experiment(size: str) -> Experiment:
    """Return the experiment in one of its sizes."""
    return Experiment(
        title="Convergence of eight methods",
        paper="Figure of convergence",
        about="The same trials as in table2, round by round.",
        report="convergence",
        settings=SETTINGS[size],
        splits=three_splits(size),
        arms=ALL_METHODS,
        controls=CONTROLS,
        last_rounds=LAST_ROUNDS,
    )
