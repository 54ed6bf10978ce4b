"""The paper's figures of the client number: ten of them are active in a round."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    ALL_METHODS,
    CONTROL_ARMS,
    CONTROLS,
    DIRICHLET_001,
    FEDGAN,
    FMDS,
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
    return Experiment(
        title="Accuracy over the number of clients, ten of them active per round",
        paper="Figures of the client number",
        about="The paper does not state the split of its figures. These have the split of its "
        "other ablations.",
        settings={**SETTINGS[size], "cohort_size": 10},
        splits=DIRICHLET_001 if is_small else fifth_of_the_classes(size),
        arms=CONTROL_ARMS | FEDGAN | FMDS | HFMDS if is_small else ALL_METHODS,
        controls=CONTROLS,
        sweep=Sweep("split.devices", "clients", (10, 20, 40) if is_small else (20, 50, 100)),
        last_rounds=LAST_ROUNDS,
    )
