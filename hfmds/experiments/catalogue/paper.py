"""What the experiments of the paper have in common: sizes, settings, splits and arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hfmds.experiments.experiment import PaperNumber
from hfmds.experiments.settings import Settings, Times

Named = dict[str, Settings]

SMALL, PAPER, PAPER_CIFAR100 = "small", "paper", "paper-cifar100"
SIZES = (SMALL, PAPER, PAPER_CIFAR100)
"""`small` takes about an hour on two cores (table2); `paper` takes days on a few."""

LAST_ROUNDS = 5  # single rounds vary much under skew

_PAPER: Settings = {
    "data": "cifar10",
    "method": "fedavg",
    "rounds": 100,  # T; the paper does not state it, its curves show about as many
    # Table 1 of the paper
    "training.batch_size": 10,  # B
    "training.local_epochs": 1,
    "training.learning_rate": 0.005,  # eta
    "training.momentum": 0.9,
    "training.weight_decay": 0.0005,
    "training.alpha": 0.1,
    "hfmds.samples_per_device": 100,  # B_g
    "hfmds.steps": 500,  # T_g
    "hfmds.every_rounds": 20,  # T_d
    "hfmds.first_round": 20,
    "hfmds.learning_rate": 0.02,
    "hfmds.mu": 0.5,
    "hfmds.prototype_momentum": 0.5,  # lambda
    "split.devices": 20,
}
_SMALL: Settings = {
    "rounds": 29,
    "test_images": 2000,
    "split.devices": 10,
    "split.samples_per_device": 100,
    "hfmds.samples_per_device": 10,
    "hfmds.steps": 60,
    "hfmds.first_round": 15,
    "hfmds.every_rounds": 5,
    "fedmix.samples_per_device": 10,
    "fedgan.samples_per_device": 10,
    "fedgan.gan_rounds": 10,
    "fedgan.width": 16,
}
SETTINGS: dict[str, Settings] = {
    SMALL: {**_PAPER, **_SMALL},
    PAPER: _PAPER,
    PAPER_CIFAR100: {**_PAPER, "data": "cifar100"},
}
"""The settings of all trials, by size."""

# --- Splits -------------------------------------------------------------------------------------

DIRICHLET_001: Named = {"Dir(0.01)": {"split.kind": "dirichlet", "split.concentration": 0.01}}
DIRICHLET_005: Named = {"Dir(0.05)": {"split.kind": "dirichlet", "split.concentration": 0.05}}


def label_skew(classes: int) -> Named:
    """Return the split in which each client has so many classes."""
    name = f"{classes} class{'' if classes == 1 else 'es'}/client"
    return {name: {"split.kind": "label-skew", "split.classes_per_device": classes}}


def fifth_of_the_classes(size: str) -> Named:
    """Return the paper's split by classes: 2 of CIFAR-10, 10 of CIFAR-100."""
    return label_skew(10 if size == PAPER_CIFAR100 else 2)


def three_splits(size: str) -> Named:
    """Return the splits of the paper's tables 2 and 3."""
    return DIRICHLET_001 | DIRICHLET_005 | fifth_of_the_classes(size)


# --- Arms ---------------------------------------------------------------------------------------

FEDAVG: Named = {"FedAvg": {"method": "fedavg"}}
FEDPROX: Named = {"FedProx": {"method": "fedprox"}}
# mu was chosen among 0.1, 1 and 5 on seed 0 of Dir(0.01), small: 15.9, 10.4 and 11.5 %, where
# FedAvg has 16.8. MOON's paper has 5, with a projection head and batches of 64; we have neither.
MOON: Named = {"MOON": {"method": "moon", "moon.mu": 0.1}}
FEDGEN: Named = {"FedGen": {"method": "fedgen"}}
FEDMIX: Named = {"FedMix": {"method": "fedmix"}}
# An image of the GAN counts as a real one. The pool is there from the classifier's first round on,
# where alpha = 0.1 would be little more than training at a tenth of the rate.
FEDGAN: Named = {"FedGAN": {"method": "fedgan", "training.alpha": 0.5}}
FMDS: Named = {"FMDS-FL": {"method": "hfmds", "hfmds.mu": 0.0}}
HFMDS: Named = {"HFMDS-FL": {"method": "hfmds"}}

# Ablations of the synthesis loss.
CLASSIFICATION_ONLY: Named = {
    "L_C only": {"method": "hfmds", "hfmds.matching_weight": 0.0, "hfmds.mu": 0.5}
}
EASY_FEATURES: Named = {"L_C + L_EFM": {"method": "hfmds", "hfmds.mu": -0.5}}

# Controls. alpha = 0.1 also cuts the step on real data to a tenth: is it that, or the synthesis?
FEDAVG_SLOW: Named = {
    "FedAvg lr/10": {
        "method": "fedavg",
        "training.learning_rate": Times(0.1, "training.learning_rate"),
    }
}
# As HFMDS-FL's step on real data: full until there is a pool, and a tenth from then on.
FEDAVG_SLOW_LATER: Named = {
    "FedAvg lr/10 later": {
        "method": "fedavg",
        "training.later_from_round": Times(1, "hfmds.first_round"),
        "training.later_learning_rate": Times(0.1, "training.learning_rate"),
    }
}
NOISE_POOL: Named = {"noise pool": {"method": "hfmds", "hfmds.steps": 0, "hfmds.mu": 0.5}}

CONTROL_ARMS = FEDAVG | FEDAVG_SLOW | FEDAVG_SLOW_LATER | NOISE_POOL
CONTROLS = tuple(CONTROL_ARMS)
ALL_METHODS = CONTROL_ARMS | FEDPROX | MOON | FEDGEN | FEDMIX | FEDGAN | FMDS | HFMDS

# --- Numbers of the paper -----------------------------------------------------------------------


def paper_rows(
    splits: Named, rows: Mapping[str, Sequence[float | tuple[float, float]]]
) -> dict[str, dict[str, PaperNumber]]:
    """Return rows of a table of the paper by arm and split; a pair is a mean and its deviation."""
    return {
        arm: {
            split: PaperNumber(*(number if isinstance(number, tuple) else (number,)))
            for split, number in zip(splits, numbers, strict=True)
        }
        for arm, numbers in rows.items()
    }


def paper_values(values: dict[str, float]) -> dict[str, dict[str, PaperNumber]]:
    """Return numbers of the paper that hold for all splits, by arm."""
    return {arm: {"": PaperNumber(value)} for arm, value in values.items()}
