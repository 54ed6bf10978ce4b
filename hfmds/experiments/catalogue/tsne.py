"""The paper's figure of t-SNE: features of real and of synthetic images."""

from __future__ import annotations

from hfmds.experiments.catalogue.paper import (
    CONTROL_ARMS,
    CONTROLS,
    FEDGAN,
    FEDMIX,
    HFMDS,
    LAST_ROUNDS,
    SETTINGS,
    fifth_of_the_classes,
)
from hfmds.experiments.catalogue.paper import SIZES as SIZES
from hfmds.experiments.experiment import Experiment, Tsne


def experiment(size: str) -> Experiment:
    """Return the experiment in one of its sizes."""
    panels = FEDMIX | FEDGAN | HFMDS
    return Experiment(
        title="Features of real and of synthetic images, by t-SNE",
        paper="Figure of t-SNE",
        about="Each picture is in the features of the last model of its own trial. For HFMDS-FL "
        "the synthesis is done with that model once for each mu, from the same real images and "
        "the same noise.",
        report="tsne",
        settings=SETTINGS[size],
        splits=fifth_of_the_classes(size),
        arms=CONTROL_ARMS | panels,
        controls=CONTROLS,
        tsne=Tsne(tuple(panels), mu=(0.0, 0.5, 1.0, 2.0), classes=5),
        seeds=(0,),
        last_rounds=LAST_ROUNDS,
    )
