"""The paper's figures of the local epochs."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    ALL_METHODS,
    CONTROL_ARMS,
    CONTROLS,
    DIRICHLET_001,
    FEDGAN,
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
    is_small = size == SMALL
    values = (1, 2, 5) if is_small else (1, 2, 5, 10)
    return Experiment(
        title="Accuracy over the number of local epochs",
        paper="Figures of the local epochs",
        about="The paper does not state the split of its figures. These have the split of its "
        "other ablations.",
        settings=SETTINGS[size],
        splits=DIRICHLET_001 if is_small else fifth_of_the_classes(size),
        arms=CONTROL_ARMS | FEDGAN | HFMDS if is_small else ALL_METHODS,
        controls=CONTROLS,
        sweep=Sweep("training.local_epochs", "local epochs", values),
        last_rounds=LAST_ROUNDS,
    )
