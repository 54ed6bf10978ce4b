"""Table 3 of the paper: leakage and computation of the methods that share images."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    CONTROL_ARMS,
    CONTROLS,
    FEDGAN,
    FEDMIX,
    FMDS,
    HFMDS,
    LAST_ROUNDS,
    PAPER_CIFAR100,
    SETTINGS,
    paper_rows,
    paper_values,
    three_splits,
)
from hfmds.experiments.catalogue.paper import SIZES as SIZES
from hfmds.experiments.experiment import Experiment

_PSNR_CIFAR10 = {
    "FedMix": [21.13, 21.86, 21.17],
    "FedGAN": [17.89, 18.48, 18.50],
    "FMDS-FL": [16.98, 17.32, 16.69],
    "HFMDS-FL": [15.59, 16.53, 16.60],
}
_PSNR_CIFAR100 = {
    "FedMix": [15.78, 15.84, 15.74],
    "FedGAN": [17.30, 17.49, 17.39],
    "FMDS-FL": [12.41, 10.96, 13.38],
    "HFMDS-FL": [12.36, 10.33, 13.15],
}
_GFLOPS_CIFAR10 = {"FedMix": 91.06, "FedGAN": 135.14, "FMDS-FL": 69.32, "HFMDS-FL": 69.33}
_GFLOPS_CIFAR100 = {"FedMix": 91.56, "FedGAN": 135.38, "FMDS-FL": 69.56, "HFMDS-FL": 69.57}


def experiment(size: str) -> Experiment:
    """Return the experiment in one of its sizes."""
    splits = three_splits(size)
    is_cifar100 = size == PAPER_CIFAR100
    return Experiment(
        title="Leakage and computation of the methods that share images",
        paper="Table 3",
        report="cost",
        settings=SETTINGS[size],
        splits=splits,
        arms=CONTROL_ARMS | FEDMIX | FEDGAN | FMDS | HFMDS,
        controls=CONTROLS,
        last_rounds=LAST_ROUNDS,
        paper_numbers={
            "psnr": paper_rows(splits, _PSNR_CIFAR100 if is_cifar100 else _PSNR_CIFAR10),
            "gflops": paper_values(_GFLOPS_CIFAR100 if is_cifar100 else _GFLOPS_CIFAR10),
        },
    )
