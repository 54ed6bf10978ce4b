"""The settings of trials, by full names such as `training.alpha`.

The names are those of the recipe's tables and of `SplitSpec`, and a few of the trial itself. The
recipe, the split and the data set check the values.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from hfmds.data.splits import SplitSpec
from hfmds.domain.methods import METHODS
from hfmds.domain.recipe import AggregationRecipe, TrainingRecipe
from hfmds.domain.validation import fields_of, key_of
from hfmds.errors import ConfigurationError

_DIGITS = 12  # of a product: 0.07, not 0.07000000000000001

Value: TypeAlias = str | int | float | bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """A number relative to another setting: `Times(0.1, "training.learning_rate")` is a tenth."""

    factor: float
    key: str

    def __str__(self) -> str:
        return f"{self.factor:g}x {self.key}"


Settings: TypeAlias = dict[str, Value | Times]
"""Values by full name."""

KEYS = (
    "data",
    "test_images",  # None: all
    "method",
    "rounds",  # of the classifier; a method's preparation comes on top
    "cohort_size",
    "compression",
    "model.architecture",
    "normalisation.mean",  # of every channel; by default measured on the training images
    "normalisation.std",
    *(f"split.{field.name}" for field in dataclasses.fields(SplitSpec)),
    *(
        key_of(table, name)
        for table in (TrainingRecipe, AggregationRecipe, *METHODS.values())
        for name in fields_of(table)
    ),
)
"""Every setting of a trial."""


def require_keys(settings: Mapping[str, object], where: str) -> None:
    """Refuse settings that do not exist: they would do nothing."""
    for key in settings:
        if key not in KEYS:
            raise ConfigurationError(f"{where}: there is no setting {key}; {nearest(key, KEYS)}")


def resolved(where: str, *layers: Mapping[str, Value | Times]) -> dict[str, Value]:
    """Return the settings of all layers; a later layer wins, and relative numbers become plain."""
    merged: dict[str, Value] = {}
    for layer in layers:
        for key, value in layer.items():
            merged[key] = _product(key, value, merged, where) if isinstance(value, Times) else value
    return merged


def section(settings: Mapping[str, Value], name: str) -> dict[str, Any]:
    """Return the settings of one table, without its name and dot."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)
    }


def nearest(wished: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the known name that was probably meant, or all."""
    names = list(known)
    last = wished.rpartition(".")[2]
    close = difflib.get_close_matches(wished, names, n=1, cutoff=0.6)
    close = close or [name for name in names if name.rpartition(".")[2] == last]
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"


def _product(key: str, relative: Times, settings: Mapping[str, Value], where: str) -> Value:
    number = settings.get(relative.key)
    if not isinstance(number, int | float):
        raise ConfigurationError(
            f"{where}: {key} is {relative}, but {relative.key} has no number; set it first"
        )
    product = float(f"{relative.factor * number:.{_DIGITS}g}")
    return int(product) if isinstance(number, int) and product.is_integer() else product
