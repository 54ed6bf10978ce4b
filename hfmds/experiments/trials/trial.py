"""A trial: one recipe learned once on one split of one data set, with one seed.

Its id is a hash of recipe, seed, split, images and, on a GPU, the kind of compute device. So
experiments share trials, and no trial is taken for another. The hash ignores the code: see FORMAT.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfmds.data.splits import SplitSpec
from hfmds.domain.methods import METHODS
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import (
    AggregationRecipe,
    ModelSpec,
    Normalisation,
    Recipe,
    Sampling,
    TrainingRecipe,
)
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.experiments.settings import Value, nearest, section
from hfmds.experiments.trials.loaded_data import LoadedData

FORMAT = 1
"""Raise this number when the same trial computes something else: old results are then ignored."""

_ID_DIGITS = 16
_LEFT_OUT_AT_DEFAULT = {
    "sampling": Sampling(),
    "aggregation": AggregationRecipe(),
    "compression": "none",
    "pool": PoolPolicy(),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that determines one run of Algorithm 1."""

    data: str  # where to load it from; not part of the id
    data_label: str
    data_digest: str
    test_images: int | None  # None: all
    split: SplitSpec
    recipe: Recipe  # with the seed, which is also that of the split
    compute_device: str = "cpu"  # of torch; numbers differ between kinds

    @property
    def trial_id(self) -> str:
        record = self.record()
        del record["data"]["name"]
        # JSON writes the shortest form of a number that reads back the same, on any machine.
        text = json.dumps([FORMAT, record], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]

    @property
    def seed(self) -> int:
        return self.recipe.seed

    def record(self) -> dict[str, Any]:
        """Return the trial for JSON."""
        recipe = dataclasses.asdict(self.recipe)
        recipe["method"] = {"name": self.recipe.method.name, **recipe["method"]}
        # Settings at their default are left out: so a new setting does not change old ids.
        for name, default in _LEFT_OUT_AT_DEFAULT.items():
            if getattr(self.recipe, name) == default:
                del recipe[name]
        if not self.recipe.training.later_from_round:
            for name in ("later_from_round", "later_learning_rate"):
                del recipe["training"][name]
        record = {
            "data": {
                "name": self.data_label,
                "sha256": self.data_digest,
                "test_images": self.test_images,
            },
            "split": dataclasses.asdict(self.split),
            "recipe": recipe,
        }
        return record if self.compute_device == "cpu" else record | {"on": self.compute_device}


def build_trial(settings: Mapping[str, Value], seed: int, data: LoadedData, where: str) -> Trial:
    """Build the trial that these settings describe; `where` names it in errors."""
    name = str(settings.get("method"))
    if name not in METHODS:
        raise ConfigurationError(f"{where}: method is {name!r}; {nearest(name, METHODS)}")
    channels, height, width = data.dataset.image_shape
    try:
        spec = SplitSpec(**_split_settings(settings, where))
        method = METHODS[name](**section(settings, name))
        rounds: Any = settings.get("rounds", 0)
        compression: Any = settings.get("compression", "none")
        cohort: Any = settings.get("cohort_size", 0)
        recipe = Recipe(
            model=ModelSpec(
                channels=channels,
                height=height,
                width=width,
                classes=data.dataset.classes,
                **section(settings, "model"),
            ),
            normalisation=_normalisation(settings, data.normalisation),
            # Every method trains the classifier for the same number of rounds.
            rounds=rounds + method.preparation_rounds if type(rounds) is int else rounds,
            seed=seed,
            training=TrainingRecipe(**section(settings, "training")),
            method=method,
            cohort_size=0 if cohort >= spec.devices else cohort,  # 0: all; one id for both
            aggregation=AggregationRecipe(**section(settings, "aggregation")),
            compression=compression,
        )
    except (InvalidInput, ConfigurationError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    test_images: Any = settings.get("test_images")
    if test_images is not None and test_images >= len(data.dataset.test):
        test_images = None  # all; one id for both
    return Trial(str(settings["data"]), data.label, data.digest, test_images, spec, recipe)


def _normalisation(settings: Mapping[str, Value], own: Normalisation) -> Normalisation:
    """Return the data set's normalisation, unless the settings give one for all channels."""
    given, channels = section(settings, "normalisation"), len(own.mean)
    return Normalisation(
        (given["mean"],) * channels if "mean" in given else own.mean,
        (given["std"],) * channels if "std" in given else own.std,
    )


def _split_settings(settings: Mapping[str, Value], where: str) -> dict[str, Any]:
    given = section(settings, "split")
    for needed in ("kind", "devices"):
        if given.get(needed) is None:
            raise ConfigurationError(f"{where}: split.{needed} is not set; set it")
    return given
