"""The paper's figures of mu, the hardness of the matched features."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    CONTROL_ARMS,
    CONTROLS,
    DIRICHLET_001,
    HFMDS,
    LAST_ROUNDS,
    SETTINGS,
    SMALL,
    fifth_of_the_classes,
)
from hfmds.experiments.catalogue.paper import SIZES as SIZES
from hfmds.experiments.experiment import Experiment, Sweep


def experiment(size: str) -> Experiment:
    """Return the experiment in one of its sizes."""
    splits = fifth_of_the_classes(size)
    return Experiment(
        title="Accuracy of HFMDS-FL over mu",
        paper="Figures of mu",
        about="mu = 0 is FMDS-FL. The controls do not depend on mu: their trials are the same in "
        "every column. The paper reports a gain for moderate mu and a loss of 0.65 points from "
        "mu = 0 to mu = 2.",
        settings=SETTINGS[size],
        splits=DIRICHLET_001 | splits if size == SMALL else splits,
        arms=CONTROL_ARMS | HFMDS,
        controls=CONTROLS,
        sweep=Sweep("hfmds.mu", "mu", (0.0, 0.25, 0.5, 1.0, 2.0)),
        last_rounds=LAST_ROUNDS,
    )
