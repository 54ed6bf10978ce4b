"""Table 2 of the paper: accuracy of eight methods under three splits."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    ALL_METHODS,
    CONTROLS,
    LAST_ROUNDS,
    PAPER_CIFAR100,
    SETTINGS,
    paper_rows,
    three_splits,
)
from hfmds.experiments.catalogue.paper import SIZES as SIZES
from hfmds.experiments.experiment import Experiment

_CIFAR10 = {
    "FedAvg": [(28.53, 6.74), (45.31, 1.64), (50.44, 2.70)],
    "FedProx": [(27.68, 5.31), (42.57, 2.10), (46.36, 2.80)],
    "MOON": [(28.20, 7.18), (44.81, 1.80), (50.24, 2.80)],
    "FedGen": [(28.33, 7.45), (45.66, 1.59), (51.33, 1.72)],
    "FedMix": [(26.27, 2.41), (45.11, 1.57), (51.30, 3.54)],
    "FedGAN": [(32.75, 5.41), (45.93, 1.14), (52.54, 0.49)],
    "FMDS-FL": [(33.67, 3.49), (45.95, 0.99), (52.69, 0.58)],
    "HFMDS-FL": [(36.05, 3.08), (46.73, 1.70), (53.74, 0.26)],
}
_CIFAR100 = {
    "FedAvg": [(27.14, 0.46), (30.51, 0.24), (28.16, 0.24)],
    "FedProx": [(25.64, 0.62), (29.08, 0.32), (26.99, 0.42)],
    "MOON": [(27.20, 0.52), (30.67, 0.26), (28.10, 0.20)],
    "FedGen": [(26.80, 0.74), (30.48, 0.48), (28.78, 0.22)],
    "FedMix": [(26.80, 0.58), (30.30, 0.43), (28.15, 0.25)],
    "FedGAN": [(26.82, 0.74), (30.00, 0.07), (27.87, 0.13)],
    "FMDS-FL": [(28.82, 0.76), (31.22, 0.39), (29.81, 0.19)],
    "HFMDS-FL": [(29.48, 0.79), (31.54, 0.32), (29.92, 0.36)],
}


def experiment(size: str) -> Experiment:
    """Return the experiment in one of its sizes."""
    splits = three_splits(size)
    return Experiment(
        title="Accuracy of eight methods under three splits",
        paper="Table 2",
        settings=SETTINGS[size],
        splits=splits,
        arms=ALL_METHODS,
        controls=CONTROLS,
        last_rounds=LAST_ROUNDS,
        paper_numbers={
            "accuracy": paper_rows(splits, _CIFAR100 if size == PAPER_CIFAR100 else _CIFAR10)
        },
    )
