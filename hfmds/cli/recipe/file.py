"""The description of a run from a recipe file and from options; options win.

A recipe file is TOML. Its tables and keys are those of `hfmds.domain`; the settings of the method
are in a table with the method's name. The defaults are the paper's:

    method = "hfmds"            # others: docs/methods.md
    rounds = 100
    class_names = ["cat", "dog"]

    [model]
    height = 64
    width = 64
    classes = 2

    [training]
    learning_rate = 0.005

    [aggregation]               # how the server combines updates: docs/aggregation.md
    rule = "trimmed_mean"

    [hfmds]
    every_rounds = 20

    [pool]                      # which synthetic images are taken and kept: docs/store.md
    psnr_nearest_max_db = 20
    leakage_action = "drop"

    [sampling]                  # which devices are asked: docs/rounds.md
    strategy = "by_samples"

    [policy]
    minimum_devices = 10

    [eligibility]
    labels = ["site=north"]
    require_charging = true

    [evaluation]                # on devices: docs/evaluation.md
    devices = 5

    [early_stop]
    patience_rounds = 10

    [retention]
    keep_last = 3
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hfmds.cli.recipe.keys import (
    DEFAULT_METHOD,
    DEFAULT_NORMALISATION,
    DEFAULT_ROUNDS,
    KEYS,
    KEYS_BY_OPTION,
    option_flags,
    require_key,
    require_table,
)
from hfmds.domain.devices import Eligibility
from hfmds.domain.methods import METHODS, Method
from hfmds.domain.recipe import (
    AggregationRecipe,
    ModelSpec,
    Normalisation,
    Recipe,
    Sampling,
    TrainingRecipe,
    default_pool,
)
from hfmds.domain.round_policy import (
    Asynchronous,
    EarlyStop,
    EvaluationByDevices,
    Retention,
    RoundPolicy,
)
from hfmds.domain.runs import RunSpec
from hfmds.domain.validation import require
from hfmds.errors import ConfigurationError, InvalidInput

Tables = dict[str, dict[str, Any]]
"""The values of each table by their names; "" is the top of a recipe."""


def spec_from(
    recipe_file: Path | None, options: Mapping[str, object], settings: Sequence[str] = ()
) -> RunSpec:
    """Return the run that the file and the options describe.

    Options come by name, None if absent. `settings` are those of `--set`, as KEY=VALUE.
    """
    tables = _read_file(recipe_file) if recipe_file else {}
    for key, value in _from_command_line(options, settings).items():
        tables.setdefault(KEYS[key].table, {})[KEYS[key].name] = value
    given_options = {name for name, value in options.items() if value is not None}
    try:
        method = _method_named(tables.get("", {}).pop("method", DEFAULT_METHOD))
        _refuse_other_methods(method.name, tables, given_options)
        return _build(method, tables)
    except InvalidInput as error:  # the operator's own input
        raise ConfigurationError(str(error)) from error


def _build(method: type[Method], tables: Tables) -> RunSpec:
    def table(name: str) -> dict[str, Any]:
        return tables.get(name, {})

    own = table(method.name)
    if "every_rounds" in own:  # the paper refreshes when t mod T_d = 0
        own = {"first_round": own["every_rounds"], **own}
    settings = method(**own)
    model = ModelSpec(**table("model"))
    middle = (DEFAULT_NORMALISATION,) * model.channels
    recipe = Recipe(
        model=model,
        normalisation=Normalisation(**{"mean": middle, "std": middle, **table("normalisation")}),
        training=TrainingRecipe(**table("training")),
        aggregation=AggregationRecipe(**table("aggregation")),
        sampling=Sampling(**table("sampling")),
        pool=replace(default_pool(settings), **table("pool")),
        method=settings,
        **{"rounds": DEFAULT_ROUNDS, **table("")},
    )
    policy = RoundPolicy(
        **table("policy"),
        eligibility=Eligibility(**table("eligibility")),
        asynchronous=Asynchronous(**table("asynchronous")) if table("asynchronous") else None,
        evaluation=EvaluationByDevices(**table("evaluation")),
        early_stop=EarlyStop(**table("early_stop")) if table("early_stop") else None,
        retention=Retention(**table("retention")),
    )
    return RunSpec(recipe, policy)


def _method_named(name: str) -> type[Method]:
    require(name in METHODS, f"method is {name!r}; it must be one of {', '.join(METHODS)}")
    return METHODS[name]


def _refuse_other_methods(method: str, tables: Tables, given_options: set[str]) -> None:
    """Refuse settings of another method: they would do nothing."""
    flags = {KEYS_BY_OPTION[name].key for name in given_options}
    for table, values in tables.items():
        if table not in METHODS or table == method:
            continue
        if not values:
            raise ConfigurationError(
                f"the table [{table}] is given, but the method is {method}; "
                f"leave it out, or choose method {table}"
            )
        name, value = next(iter(values.items()))
        key, own = f"{table}.{name}", f"{method}.{name}"
        remedy = "leave it out"
        if own in KEYS:
            text = repr(value).removesuffix(".0")
            remedy = f"write --set {own}={text}" if key in flags else f"write {own}"
        raise ConfigurationError(
            f"{option_flags()[key] if key in flags else key} is given, but the method is {method}; "
            f"{remedy}, or choose method {table}"
        )


def _read_file(path: Path) -> Tables:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the recipe {path} is not TOML: {error}") from error
    tables: Tables = {"": {}}
    try:
        for name, value in document.items():
            if not isinstance(value, dict):
                tables[""][name] = require_key(name).from_file(value)
            elif value:
                keys = {inner: require_key(f"{name}.{inner}") for inner in value}
                tables[name] = {inner: key.from_file(value[inner]) for inner, key in keys.items()}
            else:
                tables[require_table(name)] = {}
    except (ConfigurationError, InvalidInput) as error:
        raise ConfigurationError(f"the recipe {path}: {error}") from error
    return tables


def _from_command_line(options: Mapping[str, object], settings: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            key = KEYS_BY_OPTION[name].key
            text = isinstance(value, str)
            values[key] = _from_text(option_flags()[key], key, str(value)) if text else value
    for setting in settings:
        key, equals, text_value = setting.partition("=")
        key = key.strip()
        if not (key and equals):
            raise ConfigurationError(f"--set {setting}: write it as KEY=VALUE, e.g. fedprox.mu=0.1")
        value = _from_text("--set", key, text_value.strip())
        if key in values:
            raise ConfigurationError(f"--set: {key} is given twice on the command line")
        values[key] = value
    return values


def _from_text(flag: str, key: str, text: str) -> Any:
    try:
        return require_key(key).from_text(text)
    except (ConfigurationError, InvalidInput) as error:
        raise ConfigurationError(f"{flag}: {error}") from error
