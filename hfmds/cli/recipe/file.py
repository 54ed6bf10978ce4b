"""What a run is to do, from a recipe file and from options; options win.

A recipe file is TOML with the names of `hfmds.domain.recipe`, and with the settings of the
method in a table that has its name; what is not said is the paper's:

    method = "hfmds"            # or fedavg, fedprox, moon, fedgen, fedmix, fedgan
    rounds = 100
    class_names = ["cat", "dog"]

    [model]
    height = 64
    width = 64
    classes = 2

    [training]
    learning_rate = 0.005

    [aggregation]               # what becomes of the updates: docs/aggregation.md
    rule = "trimmed_mean"

    [hfmds]
    every_rounds = 20

    [pool]                      # what is taken, kept and refused of synthetic images: docs/store.md
    psnr_nearest_max_db = 20
    leakage_action = "drop"

    [sampling]                  # who is asked, and when a round closes: docs/rounds.md
    strategy = "by_samples"

    [policy]
    minimum_devices = 10

    [eligibility]
    labels = ["site=north"]
    require_charging = true

    [evaluation]                # by devices; when to stop, what to keep: docs/evaluation.md
    devices = 5

    [early_stop]
    patience_rounds = 10

    [retention]
    keep_last = 3
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hfmds.cli.recipe.fields import (
    DEFAULT_METHOD,
    DEFAULT_ROUNDS,
    MIDDLE,
    field_of,
    field_of_option,
    is_key,
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
from hfmds.errors import ConfigurationError, InvalidInput

_MOST = 2**31 - 1  # what the contract has room for


def spec_from(
    recipe_file: Path | None, given: Mapping[str, object], settings: Sequence[str] = ()
) -> RunSpec:
    """The run as the file and the options describe it.

    Options come by name, None if not given; `settings` are those of `--set`, as KEY=VALUE.
    """
    said, empty_tables = _read_file(recipe_file) if recipe_file else ({}, [])
    said.update(_from_options(given, settings))
    try:
        method = _method_named(said.pop("method", DEFAULT_METHOD))
        _refuse_other_methods(method.name, said, empty_tables, given)
        return _build(method, said)
    except InvalidInput as error:  # here it is the operator's own
        raise ConfigurationError(str(error)) from error


def _build(method: type[Method], said: Mapping[str, Any]) -> RunSpec:
    def table(name: str) -> dict[str, Any]:
        return {field_of(k).name: value for k, value in said.items() if field_of(k).table == name}

    for key, value in said.items():
        if isinstance(value, int) and key != "seed" and value > _MOST:
            raise ConfigurationError(f"{key} is {value}; it must be at most {_MOST}")
    chosen = table(method.name)
    if "every_rounds" in chosen:  # the paper refreshes when t mod T_d = 0
        chosen.setdefault("first_round", chosen["every_rounds"])
    settings = method(**chosen)
    model = ModelSpec(**table("model"))
    middle = (MIDDLE,) * model.channels
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
        asynchronous=_asynchronous(table("asynchronous")),
        evaluation=EvaluationByDevices(**table("evaluation")),
        early_stop=_early_stop(table("early_stop")),
        retention=Retention(**table("retention")),
    )
    return RunSpec(recipe, policy)


def _asynchronous(said: Mapping[str, Any]) -> Asynchronous | None:
    if not said:
        return None
    if "buffer_size" not in said:
        raise ConfigurationError(
            f"asynchronous.{next(iter(said))} is given, but not asynchronous.buffer_size, the "
            "number of results that make a round; add it"
        )
    return Asynchronous(**said)


def _early_stop(said: Mapping[str, Any]) -> EarlyStop | None:
    if not said:
        return None
    if "patience_rounds" not in said:
        raise ConfigurationError(
            f"early_stop.{next(iter(said))} is given, but not early_stop.patience_rounds, the "
            "number of evaluated rounds to wait for a better one; add it"
        )
    return EarlyStop(**said)


def _method_named(name: str) -> type[Method]:
    if name not in METHODS:
        raise ConfigurationError(f"method is {name!r}; it must be one of {', '.join(METHODS)}")
    return METHODS[name]


def _refuse_other_methods(
    method: str,
    said: Mapping[str, Any],
    empty_tables: Sequence[str],
    given: Mapping[str, object],
) -> None:
    """Settings of another method would do nothing, and their author would not know."""
    flags = {
        field_of_option(name).key: field_of_option(name).option().flag
        for name, value in given.items()
        if value is not None
    }
    for key, value in said.items():
        field = field_of(key)
        if field.table not in METHODS or field.table == method:
            continue
        own, remedy = f"{method}.{field.name}", "leave it out"
        if is_key(own):
            text = repr(value).removesuffix(".0")
            remedy = f"write --set {own}={text}" if key in flags else f"write {own}"
        raise ConfigurationError(
            f"{flags.get(key, key)} is given, but the method is {method}; "
            f"{remedy}, or choose method {field.table}"
        )
    for table in empty_tables:
        if table in METHODS and table != method:
            raise ConfigurationError(
                f"the table [{table}] is given, but the method is {method}; "
                f"leave it out, or choose method {table}"
            )


def _read_file(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What is said by key, and the tables in which nothing is said."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the recipe {path} is not TOML: {error}") from error
    try:
        empty_tables = [require_table(name) for name, value in document.items() if value == {}]
        return {k: field_of(k).from_file(value) for k, value in _flat(document)}, empty_tables
    except ConfigurationError as error:
        raise ConfigurationError(f"the recipe {path}: {error}") from error


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def _from_options(given: Mapping[str, object], settings: Sequence[str]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            field = field_of_option(name)
            # What is not a list comes in its own type already.
            said[field.key] = (
                _from_text(field.option().flag, field.key, value)
                if isinstance(value, str)
                else value
            )
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not (key and equals):
            raise ConfigurationError(f"--set {setting}: write it as KEY=VALUE, e.g. fedprox.mu=0.1")
        value = _from_text("--set", key, text.strip())
        if key in said:
            raise ConfigurationError(f"--set: {key} is given twice on the command line")
        said[key] = value
    return said


def _from_text(option: str, key: str, text: str) -> Any:
    try:
        return field_of(key).from_text(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from error
