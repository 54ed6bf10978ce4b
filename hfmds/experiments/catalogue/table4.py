"""Table 4 of the paper: what each term of the synthesis loss is worth."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    CLASSIFICATION_ONLY,
    CONTROL_ARMS,
    CONTROLS,
    DIRICHLET_001,
    EASY_FEATURES,
    FMDS,
    HFMDS,
    LAST_ROUNDS,
    PAPER_CIFAR100,
    SETTINGS,
    SMALL,
    fifth_of_the_classes,
    paper_rows,
)
from hfmds.experiments.catalogue.paper import SIZES as SIZES
from hfmds.experiments.experiment import Experiment

_CIFAR10 = {
    "L_C only": [52.08],
    "L_C + L_EFM": [52.58],
    "FMDS-FL": [52.86],
    "HFMDS-FL": [53.82],
}
_CIFAR100 = {
    "L_C only": [27.04],
    "L_C + L_EFM": [28.03],
    "FMDS-FL": [29.50],
    "HFMDS-FL": [29.73],
}


def experiment(size: str) -> Experiment:
    """Return the experiment in one of its sizes."""
    splits = fifth_of_the_classes(size)
    return Experiment(
        title="What each term of the synthesis loss is worth",
        paper="Table 4",
        settings=SETTINGS[size],
        splits=DIRICHLET_001 | splits if size == SMALL else splits,
        arms=CONTROL_ARMS | CLASSIFICATION_ONLY | EASY_FEATURES | FMDS | HFMDS,
        controls=CONTROLS,
        last_rounds=LAST_ROUNDS,
        paper_numbers={
            "accuracy": paper_rows(splits, _CIFAR100 if size == PAPER_CIFAR100 else _CIFAR10)
        },
    )
