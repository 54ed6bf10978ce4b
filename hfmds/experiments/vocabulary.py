"""Every setting a config can make: its key, and what values it takes.

A number may also be relative: `training.learning_rate: 0.1x` is a tenth of what it would be, and
`0.1x hfmds.learning_rate` a tenth of that setting.
The keys are those of the recipe and of the split, with dots, read from their dataclasses, so that a
new setting of a method can be used in a config at once. What a value may be beyond its type is
checked where it is used: by the recipe, the split, the data set.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, get_args, get_type_hints

from hfmds.data.splits import SplitSpec
from hfmds.domain.methods import METHODS
from hfmds.domain.recipe import AggregationRecipe, TrainingRecipe
from hfmds.errors import ConfigurationError

Value = str | int | float | None
Settings = dict[str, Value]
"""Values by full key, such as `training.learning_rate`."""

_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x(?: (\S+))?")
_DIGITS = 12  # of a product: 0.07 and not 0.07000000000000001
_NAMES = {str: "text", int: "a whole number", float: "a number", type(None): "null"}


def _section(name: str, kind: type) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(kind)
    return {f"{name}.{field.name}": _types(hints[field.name]) for field in dataclasses.fields(kind)}


def _types(hint: Any) -> tuple[type, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


KEYS: dict[str, tuple[type, ...]] = {
    "data": (str,),
    "test_images": (int, type(None)),  # null: all of them
    "method": (str,),
    "rounds": (int,),
    "cohort_size": (int,),
    "compression": (str,),
    "model.architecture": (str,),
    "normalisation.mean": (float,),  # of every channel; those of the training images if not set
    "normalisation.std": (float,),
    **_section("split", SplitSpec),
    **_section("training", TrainingRecipe),
    **_section("aggregation", AggregationRecipe),
    **{key: types for name in METHODS for key, types in _section(name, METHODS[name]).items()},
}
"""The types of each key's value."""


def settings_from(document: object, where: str) -> Settings:
    """A mapping of a config, with keys nested or dotted, as settings."""
    settings: Settings = {}
    for key, value in _flat(_mapping(document, where), where):
        if key not in KEYS:
            raise ConfigurationError(f"{where}: there is no setting {key}; {nearest(key, KEYS)}")
        if key in settings:
            raise ConfigurationError(f"{where}: {key} is set twice; remove one of them")
        settings[key] = _value(key, value, where)
    return settings


def layered(where: str, *layers: Settings) -> Settings:
    """Settings of which the later count, and relative ones change the earlier."""
    merged: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            factor = _factor(key, value)
            merged[key] = _times(key, factor, merged, where) if factor else value
    return merged


def _factor(key: str, value: object) -> re.Match[str] | None:
    """What a relative number says; None if it is none. A whole one may only be of another."""
    types = KEYS[key]
    if not isinstance(value, str) or not (float in types or int in types):
        return None
    factor = _FACTOR.fullmatch(value)
    return factor if factor and (factor[2] or float in types) else None


def _times(key: str, factor: re.Match[str], before: Settings, where: str) -> Value:
    of = factor[2] or key
    number = before.get(of)
    if not isinstance(number, int | float):
        raise ConfigurationError(
            f"{where}: {key} is {factor[0]}, but nothing says of what: set {of} first"
        )
    product = float(f"{float(factor[1]) * number:.{_DIGITS}g}")
    if float in KEYS[key]:
        return product
    if not product.is_integer():
        raise ConfigurationError(
            f"{where}: {key} is {factor[0]}, {product:g}; it must be a whole number"
        )
    return int(product)


def nearest(wished: str, known: Iterable[str]) -> str:
    """What somebody who wrote `wished` may have meant, as the end of an error message."""
    names = list(known)
    last = wished.rpartition(".")[2]
    close = difflib.get_close_matches(wished, names, n=1, cutoff=0.6)
    close = close or [name for name in names if name.rpartition(".")[2] == last]
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"


def section(settings: Mapping[str, Value], name: str) -> dict[str, Any]:
    """The settings under a name, by what comes after its dot."""
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)
    }


def _mapping(document: object, where: str) -> Mapping[Any, Any]:
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigurationError(
            f"{where} is {document!r}; it must be settings, such as rounds: 10"
        )
    return document


def _flat(document: Mapping[Any, Any], where: str) -> Iterable[tuple[str, object]]:
    for key, value in document.items():
        if not isinstance(key, str):
            raise ConfigurationError(f"{where}: {key!r} is no name of a setting")
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in _flat(value, where))
        else:
            yield key, value


def _value(key: str, value: object, where: str) -> Value:
    types = KEYS[key]
    # bool is an int in Python, but `rounds: true` is a mistake.
    if type(value) in types:
        number = value
    elif float in types and type(value) is int:
        number = float(value)
    elif factor := _factor(key, value):
        if factor[2] and factor[2] not in KEYS:
            raise ConfigurationError(
                f"{where}: {key}: there is no setting {factor[2]}; {nearest(factor[2], KEYS)}"
            )
        number = factor[0]
    elif float in types and isinstance(value, str):  # YAML 1.1 takes 5e-4 for text
        number = _number(value)
    else:
        number = None
    if (number is None and value is not None) or (value is None and type(None) not in types):
        rule = " or ".join(_NAMES[one] for one in types)
        raise ConfigurationError(f"{where}: {key} is {value!r}; it must be {rule}")
    assert number is None or isinstance(number, str | int | float)
    return number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
