"""One class per client and much local work: where synthesis gains most."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    CLASSIFICATION_ONLY,
    CONTROL_ARMS,
    CONTROLS,
    FMDS,
    HFMDS,
    LAST_ROUNDS,
    PAPER_CIFAR100,
    SETTINGS,
    SMALL,
    Named,
    label_skew,
)
from hfmds.experiments.catalogue.paper import SIZES as SIZES
from hfmds.experiments.experiment import Experiment

_DEMO: Named = {  # the setting of `hfmds demo`
    "digits, 1 class/client": {
        "data": "digits:16",
        "rounds": 12,
        "normalisation.mean": 0.5,
        "normalisation.std": 0.25,
        "training.learning_rate": 0.01,
        "split.kind": "label-skew",
        "split.classes_per_device": 1,
        "split.samples_per_device": 60,
        "hfmds.samples_per_device": 20,
        "hfmds.steps": 30,
        "hfmds.learning_rate": 0.1,
        "hfmds.first_round": 2,
        "hfmds.every_rounds": 2,
    }
}


def experiment(size: str) -> Experiment:
    """Return the experiment in one of its sizes."""
    splits = label_skew(5 if size == PAPER_CIFAR100 else 1)
    return Experiment(
        title="One class per client and much local work",
        about="Not in the paper. Each client sees a single class and trains five epochs per "
        "round, with alpha = 0.5: where we found synthesis to gain most, on digits.",
        settings={**SETTINGS[size], "training.local_epochs": 5, "training.alpha": 0.5},
        splits=_DEMO | splits if size == SMALL else splits,
        arms=CONTROL_ARMS | CLASSIFICATION_ONLY | FMDS | HFMDS,
        controls=CONTROLS,
        last_rounds=LAST_ROUNDS,
    )
