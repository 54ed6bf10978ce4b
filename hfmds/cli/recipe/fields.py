"""What can be said about a run: every key of a recipe file, with the option that stands for it.

Options are offered for what all runs share and for HFMDS-FL; the settings of the other methods, of
aggregation, of pools, and of who is asked how, have no option of their own, so that `--help` stays
readable, and are said in a file or with `--set`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from hfmds.cli.options import Option
from hfmds.domain.devices import Eligibility
from hfmds.domain.methods import METHODS, Hfmds
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import (
    COMPRESSIONS,
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
from hfmds.errors import ConfigurationError

DEFAULT_METHOD = Hfmds.name
DEFAULT_ROUNDS = 100  # the paper names no T
MIDDLE = 0.5  # mean and deviation when none are given: the model sees pixels in [-1, 1]

_TABLES: Mapping[str, type] = {
    "": Recipe,
    "model": ModelSpec,
    "normalisation": Normalisation,
    "training": TrainingRecipe,
    "aggregation": AggregationRecipe,
    "sampling": Sampling,
    "pool": PoolPolicy,
    "policy": RoundPolicy,
    "eligibility": Eligibility,
    "asynchronous": Asynchronous,
    "evaluation": EvaluationByDevices,
    "early_stop": EarlyStop,
    "retention": Retention,
    **METHODS,
}
_PANELS = {
    "": "What is learned",
    "model": "Model and images",
    "normalisation": "Model and images",
    "training": "Training on each device",
    "hfmds": "Synthesis (method hfmds only)",
    "policy": "How rounds are governed",
}


@dataclass(frozen=True, slots=True)
class RecipeField:
    """A thing that can be said about a run: in a file by its key, maybe also in an option."""

    key: str  # "training.alpha"
    option_name: str = ""
    help: str = ""
    default: str = ""  # shown when the type has none of its own

    @property
    def table(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def kind(self) -> Any:
        """int, float, str, bool, tuple[float, ...] or tuple[str, ...]."""
        return str if self.key == "method" else get_type_hints(_TABLES[self.table])[self.name]

    def option(self) -> Option:
        """The option that stands for it; only for a field that has one."""
        kind = self.kind if self.kind in (int, float) else str
        return Option(self.option_name, kind, self.help, self.shown_default, _PANELS[self.table])

    @property
    def shown_default(self) -> str:
        """What it is if nothing is said; empty: nothing."""
        if self.default:
            return self.default
        found = {f.name: f.default for f in dataclasses.fields(_TABLES[self.table])}[self.name]
        if found is dataclasses.MISSING:
            return "must be said"
        return "" if found == () else str(found).lower() if self.kind is bool else str(found)

    @property
    def rule(self) -> str:
        """What a file may say it is."""
        return _RULES[self.kind]

    @property
    def meaning(self) -> str:
        """Of one with an option, in a sentence; else where it is explained."""
        return self.help or _PAGES.get(self.table, "docs/methods.md")

    # --- values ---------------------------------------------------------------------------------

    def from_file(self, value: Any) -> Any:
        """The value as TOML gives it, in the field's own type."""
        # bool is an int in Python, but `rounds = true` is a mistake.
        match self.kind, value:
            case kind, int() if kind in (int, float) and not isinstance(value, bool):
                return kind(value)
            case kind, float() if kind is float:
                return value
            case kind, str() if kind is str:
                return value
            case kind, bool() if kind is bool:
                return value
            case kind, list() if kind == tuple[str, ...]:
                if all(isinstance(item, str) for item in value):
                    return tuple(value)
                raise self._wrong(value, self.rule)
            case kind, list() if kind == tuple[float, ...]:
                if all(isinstance(item, int | float) for item in value):
                    return tuple(float(item) for item in value)
                raise self._wrong(value, self.rule)
        raise self._wrong(value, self.rule)

    def from_text(self, text: str) -> Any:
        """The value as it is written on a command line; lists have commas."""
        if self.kind == tuple[str, ...]:
            return tuple(item.strip() for item in text.split(","))
        if self.kind is bool and text in _TRUTH:
            return _TRUTH[text]
        try:
            if self.kind is bool:
                raise ValueError
            if self.kind == tuple[float, ...]:
                return tuple(float(item) for item in text.split(","))
            return self.kind(text)
        except ValueError:
            several = self.kind == tuple[float, ...]
            rule = "numbers with commas between them" if several else self.rule
            raise self._wrong(text, rule) from None

    def _wrong(self, value: Any, rule: str) -> ConfigurationError:
        return ConfigurationError(f"{self.key} is {value!r}; it must be {rule}")


_RULES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple[str, ...]: "a list of strings",
    tuple[float, ...]: "a list of numbers",
}
_TRUTH = {"true": True, "false": False}

_F = RecipeField
_FIELDS_WITH_OPTION = (
    _F(
        "method",
        "method",
        f"How devices learn from each other: {', '.join(METHODS)}.",
        default=DEFAULT_METHOD,
    ),
    _F("rounds", "rounds", "Rounds to train (T).", default=str(DEFAULT_ROUNDS)),
    _F("seed", "seed", "Seed of everything random in the run."),
    _F("cohort_size", "cohort_size", "Devices per round; 0: all that are available."),
    _F("class_names", "class_names", "Names of the classes, with commas; none: their numbers."),
    _F("compression", "compression", f"Of what devices send: {', '.join(COMPRESSIONS)}."),
    _F("model.architecture", "architecture", "Name of the network."),
    _F("model.channels", "channels", "Channels of the images."),
    _F("model.height", "height", "Height of the images in pixels."),
    _F("model.width", "width", "Width of the images in pixels."),
    _F("model.classes", "classes", "Number of classes."),
    _F(
        "normalisation.mean",
        "mean",
        "Mean of pixels in [0, 1], one per channel, with commas.",
        default=f"{MIDDLE} each",
    ),
    _F(
        "normalisation.std",
        "std",
        "Standard deviation of pixels in [0, 1], one per channel, with commas.",
        default=f"{MIDDLE} each",
    ),
    _F("training.batch_size", "batch_size", "Real samples per step, and synthetic ones (B)."),
    _F("training.local_epochs", "local_epochs", "Passes over a device's data per round."),
    _F("training.learning_rate", "learning_rate", "Learning rate of SGD (eta)."),
    _F(
        "training.later_from_round",
        "later_from_round",
        "Round from which the learning rate is --later-learning-rate; 0: it stays.",
    ),
    _F("training.later_learning_rate", "later_learning_rate", "Learning rate from that round on."),
    _F("training.momentum", "momentum", "Momentum of SGD."),
    _F("training.weight_decay", "weight_decay", "Weight decay of SGD."),
    _F(
        "training.alpha",
        "alpha",
        "Weight of the loss on real samples once there is a pool; used by "
        f"{' and '.join(name for name in METHODS if METHODS[name].uses_alpha)}.",
    ),
    _F("hfmds.every_rounds", "refresh_every", "Rounds between refreshes of the pool (T_d)."),
    _F(
        "hfmds.first_round",
        "first_refresh",
        "Round of the first refresh.",
        default="as --refresh-every",
    ),
    _F("hfmds.samples_per_device", "synthetic_images", "Images per device and refresh (B_g)."),
    _F("hfmds.steps", "synthesis_steps", "Optimisation steps per refresh (T_g)."),
    _F("hfmds.learning_rate", "synthesis_learning_rate", "Learning rate of synthesis (Adam)."),
    _F("hfmds.mu", "mu", "How hard features are made; 0: plain feature matching."),
    _F("hfmds.prototype_momentum", "prototype_momentum", "Momentum of prototypes (lambda)."),
    _F("hfmds.matching_weight", "matching_weight", "Weight of feature matching; 0: none."),
    _F(
        "hfmds.local_prototypes",
        "local_prototypes",
        "true: prototypes of the local model in training, not of the global one.",
    ),
    _F("policy.minimum_devices", "minimum_devices", "Devices a round needs to open and to count."),
    _F("policy.deadline_seconds", "deadline_seconds", "When a phase closes with what it has."),
    _F("policy.lease_seconds", "lease_seconds", "How long a silent device may keep a task."),
    _F(
        "policy.over_selection",
        "over_selection",
        "Devices that are asked, as a factor of --cohort-size; 1: no spares.",
    ),
    _F(
        "policy.task_deadline_seconds",
        "task_deadline_seconds",
        "How long a device may work on one task; 0: till the round closes.",
    ),
)

_PAGES = {  # of tables without options; methods have one of their own
    "aggregation": "docs/aggregation.md",
    "sampling": "docs/rounds.md",
    "pool": "docs/store.md",
    "eligibility": "docs/rounds.md",
    "asynchronous": "docs/rounds.md",
    "evaluation": "docs/evaluation.md",
    "early_stop": "docs/evaluation.md",
    "retention": "docs/evaluation.md",
}
_DEFAULTS = {"pool.near_threshold": "by method"}

FIELDS = (
    *_FIELDS_WITH_OPTION,
    *(
        RecipeField(key := f"{table}.{field.name}", default=_DEFAULTS.get(key, ""))
        for table in (*_PAGES, *METHODS)
        if table not in _PANELS
        for field in dataclasses.fields(_TABLES[table])
    ),
)
RECIPE_OPTIONS = [field.option() for field in _FIELDS_WITH_OPTION]


def fields_of(table: str) -> list[RecipeField]:
    """All that can be said in a table; of "", in any."""
    wanted = require_table(table) if table else ""
    return [field for field in FIELDS if wanted in ("", field.table)]


_BY_KEY = {field.key: field for field in FIELDS}
_BY_OPTION = {field.option_name: field for field in _FIELDS_WITH_OPTION}


def field_of(key: str) -> RecipeField:
    """The field of a key; for a key that does not exist, an error that says the nearest."""
    if key not in _BY_KEY:
        raise ConfigurationError(f"unknown key {key}; {_remedy(key)}")
    return _BY_KEY[key]


def is_key(key: str) -> bool:
    """Whether there is such a key."""
    return key in _BY_KEY


def field_of_option(name: str) -> RecipeField:
    """The field an option stands for."""
    return _BY_OPTION[name]


def require_table(name: str) -> str:
    """The name of a table; for one that does not exist, an error that says the nearest."""
    tables = [table for table in _TABLES if table]
    if name not in tables:
        nearest = difflib.get_close_matches(name, tables, n=1)
        remedy = f"did you mean [{nearest[0]}]?" if nearest else f"known are {', '.join(tables)}"
        raise ConfigurationError(f"unknown table [{name}]; {remedy}")
    return name


def _remedy(key: str) -> str:
    if key in _TABLES:
        keys = ", ".join(field.key for field in FIELDS if field.table == key)
        return f"it is a table, and its keys are {keys}" if keys else "it is a table without keys"
    table, _, name = key.rpartition(".")
    same_table = {f.name: f.key for f in FIELDS if table and f.table == table}
    # A key may also be right but in the wrong table, or in none.
    nearest = [field.key for field in FIELDS if field.name == name]
    if not nearest and same_table:
        nearest = [same_table[n] for n in difflib.get_close_matches(name, same_table, n=1)]
    elif not nearest:
        nearest = difflib.get_close_matches(key, _BY_KEY, n=1)
    if nearest:
        return f"did you mean {' or '.join(nearest)}?"
    return f"known are {', '.join(same_table.values() or _BY_KEY)}"
