"""The keys of a recipe, such as `training.alpha`: the fields of the tables in `hfmds.domain`.

Some keys have an option of their own. All others are set in a recipe file or with `--set`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_origin

import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from hfmds.domain.devices import Eligibility
from hfmds.domain.methods import METHODS, Hfmds
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import (
    AggregationRecipe,
    ModelSpec,
    Normalisation,
    Recipe,
    Sampling,
    TrainingRecipe,
)
from hfmds.domain.round_policy import (
    Asynchronous,
    EarlyStop,
    EvaluationByDevices,
    Retention,
    RoundPolicy,
)
from hfmds.domain.validation import (
    STRICT,
    SettingsTable,
    fields_of,
    kind_rule,
    parse_text,
    rule,
    shown_default,
)
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.process.options import flag_of, option

DEFAULT_METHOD = Hfmds.name
DEFAULT_ROUNDS = 100  # the paper does not state T
DEFAULT_NORMALISATION = 0.5  # for mean and deviation: the model sees pixels in [-1, 1]

_TABLES: tuple[type[SettingsTable], ...] = (
    Recipe,
    ModelSpec,
    Normalisation,
    TrainingRecipe,
    AggregationRecipe,
    Sampling,
    PoolPolicy,
    RoundPolicy,
    Eligibility,
    Asynchronous,
    EvaluationByDevices,
    EarlyStop,
    Retention,
    *METHODS.values(),
)
TABLES: Mapping[str, type[SettingsTable]] = {table.table: table for table in _TABLES}

_DEFAULTS = {  # of keys whose field has none, or whose default depends on another key
    "rounds": str(DEFAULT_ROUNDS),
    "normalisation.mean": f"{DEFAULT_NORMALISATION} each",
    "normalisation.std": f"{DEFAULT_NORMALISATION} each",
    "hfmds.first_round": "as every_rounds",
    "pool.near_threshold": "by method",
}


@dataclass(frozen=True, slots=True)
class RecipeKey:
    """One setting of a run, under the name that recipe files and `--set` use."""

    key: str  # training.alpha
    field: FieldInfo

    @property
    def table(self) -> str:
        """The table of the key; empty for a key at the top of a recipe."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The name of the key in its table."""
        return self.key.rpartition(".")[2]

    @property
    def rule(self) -> str:
        """The values that the key takes, in words."""
        return rule(self.field)

    @property
    def shown_default(self) -> str:
        """The default as text; empty if there is none."""
        return _DEFAULTS.get(self.key, shown_default(self.field))

    def from_file(self, value: Any) -> Any:
        """Return a value of a TOML file in the type of the field; the table checks the limits."""
        kind: Any = self.field.annotation
        if isinstance(value, list):
            value = tuple(value)
        try:
            if get_origin(kind) is Literal:
                kind = str
            return TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError:
            raise InvalidInput(
                f"{self.key} is {value!r}; it must be {kind_rule(self.field.annotation)}"
            ) from None

    def from_text(self, text: str) -> Any:
        """Return a value of the command line in the type of the field; lists have commas."""
        return parse_text(self.key, self.field, text)


@pydantic.dataclasses.dataclass(frozen=True, config=STRICT)
class _MethodChoice(SettingsTable):
    """The key `method`. In a recipe value it is the class of `Recipe.method`."""

    method: str = Field(
        default=DEFAULT_METHOD,
        description=f"How devices learn from each other: {', '.join(METHODS)}.",
    )


KEYS: Mapping[str, RecipeKey] = {
    key.key: key
    for key in (
        RecipeKey("method", fields_of(_MethodChoice)["method"]),
        *(
            RecipeKey(f"{table}.{name}".removeprefix("."), field)
            for table, kind in TABLES.items()
            for name, field in fields_of(kind).items()
        ),
    )
}
"""Every key of a recipe, in the order in which they are listed."""

_PANELS = {
    "": "What is learned",
    "model": "Model and images",
    "normalisation": "Model and images",
    "training": "Training on each device",
    "hfmds": "Synthesis (method hfmds only)",
    "policy": "How rounds are governed",
}
_OWN_OPTION_NAMES = {
    "hfmds.every_rounds": "refresh_every",
    "hfmds.first_round": "first_refresh",
    "hfmds.samples_per_device": "synthetic_images",
    "hfmds.steps": "synthesis_steps",
    "hfmds.learning_rate": "synthesis_learning_rate",
}

KEYS_BY_OPTION: Mapping[str, RecipeKey] = {
    _OWN_OPTION_NAMES.get(key.key, key.name): key for key in KEYS.values() if key.table in _PANELS
}
"""The keys that have an option, by its name. `--help` would be too long with all of them."""

RECIPE_OPTIONS = [
    option(name, key.field, default=key.shown_default, panel=_PANELS[key.table])
    for name, key in KEYS_BY_OPTION.items()
]


def option_flags() -> dict[str, str]:
    """The flag of each key that has an option."""
    return {key.key: flag_of(name) for name, key in KEYS_BY_OPTION.items()}


def keys_of(table: str) -> list[RecipeKey]:
    """The keys of a table; of all tables if `table` is empty."""
    wanted = require_table(table) if table else ""
    return [key for key in KEYS.values() if wanted in ("", key.table)]


def require_key(key: str) -> RecipeKey:
    """Return the key of this name; the error for an unknown one names the nearest."""
    if key not in KEYS:
        raise ConfigurationError(f"unknown key {key}; {_remedy(key)}")
    return KEYS[key]


def require_table(name: str) -> str:
    """Return the name of a table; the error for an unknown one names the nearest."""
    tables = [table for table in TABLES if table]
    if name not in tables:
        nearest = difflib.get_close_matches(name, tables, n=1)
        remedy = f"did you mean [{nearest[0]}]?" if nearest else f"known are {', '.join(tables)}"
        raise ConfigurationError(f"unknown table [{name}]; {remedy}")
    return name


def _remedy(key: str) -> str:
    if key in TABLES:
        keys = ", ".join(known.key for known in keys_of(key))
        return f"it is a table, and its keys are {keys}" if keys else "it is a table without keys"
    table, _, name = key.rpartition(".")
    same_table = {
        known.name: known.key for known in KEYS.values() if table and known.table == table
    }
    # The name may also be right and its table wrong.
    nearest = [known.key for known in KEYS.values() if known.name == name]
    if not nearest and same_table:
        nearest = [same_table[n] for n in difflib.get_close_matches(name, same_table, n=1)]
    elif not nearest:
        nearest = difflib.get_close_matches(key, KEYS, n=1)
    if nearest:
        return f"did you mean {' or '.join(nearest)}?"
    return f"known are {', '.join(same_table.values() or KEYS)}"
