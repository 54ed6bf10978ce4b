"""What a run is to do, from a recipe file and from options; options win.

A recipe file is TOML with the names of `hfmds.algorithm.types`; what is not said is the paper's:

    method = "hfmds"            # or "fedavg"
    rounds = 100
    class_names = ["cat", "dog"]

    [model]
    height = 64
    width = 64
    classes = 2

    [training]
    learning_rate = 0.005

    [synthesis]
    every_rounds = 20

    [policy]
    minimum_devices = 10
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hfmds.algorithm.types import (
    ModelSpec,
    Normalisation,
    Recipe,
    SynthesisRecipe,
    TrainingRecipe,
)
from hfmds.cli.options import Option
from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.wire.types import RoundPolicy, RunSpec

METHODS = ("hfmds", "fedavg")
DEFAULT_ROUNDS = 100  # the paper names no T
_MIDDLE = 0.5  # mean and deviation when none are given: the model sees pixels in [-1, 1]

_SECTIONS: Mapping[str, type] = {
    "": Recipe,
    "model": ModelSpec,
    "normalisation": Normalisation,
    "training": TrainingRecipe,
    "synthesis": SynthesisRecipe,
    "policy": RoundPolicy,
}
_PANELS = {
    "": "What is learned",
    "model": "Model and images",
    "normalisation": "Model and images",
    "training": "Training on each device",
    "synthesis": "Synthesis (method hfmds only)",
    "policy": "How rounds are governed",
}


@dataclass(frozen=True, slots=True)
class RecipeField:
    """A thing that can be said about a run, in a file by its key and in an option by its name."""

    key: str  # "training.alpha"
    option_name: str
    help: str
    default: str = ""  # shown when the type has none of its own

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def kind(self) -> Any:
        """int, float, str, tuple[float, ...] or tuple[str, ...]."""
        return str if self.key == "method" else get_type_hints(_SECTIONS[self.section])[self.name]

    def option(self) -> Option:
        kind = self.kind if self.kind in (int, float) else str
        return Option(self.option_name, kind, self.help, self._default(), _PANELS[self.section])

    def _default(self) -> str:
        if self.default:
            return self.default
        found = {f.name: f.default for f in dataclasses.fields(_SECTIONS[self.section])}[self.name]
        return "" if found == () else str(found)


_F = RecipeField
FIELDS = (
    _F("method", "method", "hfmds or fedavg.", default="hfmds"),
    _F("rounds", "rounds", "Rounds to train (T).", default=str(DEFAULT_ROUNDS)),
    _F("seed", "seed", "Seed of everything random in the run."),
    _F("cohort_size", "cohort_size", "Devices per round; 0: all that are available."),
    _F("class_names", "class_names", "Names of the classes, with commas; none: their numbers."),
    _F("model.architecture", "architecture", "Name of the network."),
    _F("model.channels", "channels", "Channels of the images."),
    _F("model.height", "height", "Height of the images in pixels."),
    _F("model.width", "width", "Width of the images in pixels."),
    _F("model.classes", "classes", "Number of classes."),
    _F(
        "normalisation.mean",
        "mean",
        "Mean of pixels in [0, 1], one per channel, with commas.",
        default=f"{_MIDDLE} each",
    ),
    _F(
        "normalisation.std",
        "std",
        "Standard deviation of pixels in [0, 1], one per channel, with commas.",
        default=f"{_MIDDLE} each",
    ),
    _F("training.batch_size", "batch_size", "Real samples per step, and synthetic ones (B)."),
    _F("training.local_epochs", "local_epochs", "Passes over a device's data per round."),
    _F("training.learning_rate", "learning_rate", "Learning rate of SGD (eta)."),
    _F("training.momentum", "momentum", "Momentum of SGD."),
    _F("training.weight_decay", "weight_decay", "Weight decay of SGD."),
    _F("training.alpha", "alpha", "Weight of the loss on real samples once there is a pool."),
    _F("synthesis.every_rounds", "refresh_every", "Rounds between refreshes of the pool (T_d)."),
    _F(
        "synthesis.first_round",
        "first_refresh",
        "Round of the first refresh.",
        default="as --refresh-every",
    ),
    _F("synthesis.samples_per_device", "synthetic_images", "Images per device and refresh (B_g)."),
    _F("synthesis.steps", "synthesis_steps", "Optimisation steps per refresh (T_g)."),
    _F("synthesis.learning_rate", "synthesis_learning_rate", "Learning rate of synthesis (Adam)."),
    _F("synthesis.mu", "mu", "How hard features are made; 0: plain feature matching."),
    _F("synthesis.prototype_momentum", "prototype_momentum", "Momentum of prototypes (lambda)."),
    _F("synthesis.matching_weight", "matching_weight", "Weight of feature matching; 0: none."),
    _F("policy.minimum_devices", "minimum_devices", "Devices a round needs to open and to count."),
    _F("policy.deadline_seconds", "deadline_seconds", "When a phase closes with what it has."),
    _F("policy.lease_seconds", "lease_seconds", "How long a silent device may keep a task."),
)

RECIPE_OPTIONS = [field.option() for field in FIELDS]

_BY_KEY = {field.key: field for field in FIELDS}
_BY_OPTION = {field.option_name: field for field in FIELDS}


def spec_from(recipe_file: Path | None, given: Mapping[str, object]) -> RunSpec:
    """The run as the file and the options (by name, None: not given) describe it."""
    said = dict(_read_file(recipe_file)) if recipe_file else {}
    for name, value in given.items():
        if value is not None:
            field = _BY_OPTION[name]
            said[field.key] = _from_option(field, value)
    try:
        return _build(said)
    except InvalidInput as error:  # here it is the operator's own
        raise ConfigurationError(str(error)) from error


def _build(said: Mapping[str, Any]) -> RunSpec:
    def section(name: str) -> dict[str, Any]:
        return {_BY_KEY[key].name: v for key, v in said.items() if _BY_KEY[key].section == name}

    top, synthesis_fields = section(""), section("synthesis")
    method = top.pop("method", METHODS[0])
    if method not in METHODS:
        raise ConfigurationError(f"method is {method!r}; it must be one of {', '.join(METHODS)}")
    if method == "fedavg" and synthesis_fields:
        raise ConfigurationError(
            f"synthesis.{next(iter(synthesis_fields))} is given, but method fedavg makes no "
            "synthetic images; leave it out, or choose method hfmds"
        )
    if "every_rounds" in synthesis_fields:  # the paper refreshes when t mod T_d = 0
        synthesis_fields.setdefault("first_round", synthesis_fields["every_rounds"])
    model = ModelSpec(**section("model"))
    middle = (_MIDDLE,) * model.channels
    recipe = Recipe(
        model=model,
        normalisation=Normalisation(**{"mean": middle, "std": middle, **section("normalisation")}),
        training=TrainingRecipe(**section("training")),
        synthesis=SynthesisRecipe(**synthesis_fields) if method == "hfmds" else None,
        **{"rounds": DEFAULT_ROUNDS, **top},
    )
    return RunSpec(recipe, RoundPolicy(**section("policy")))


def _read_file(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the recipe {path} is not TOML: {error}") from error
    for key, value in _flat(document):
        if key not in _BY_KEY:
            raise ConfigurationError(f"the recipe {path} has an unknown key {key}; {_remedy(key)}")
        yield key, _from_file(path, _BY_KEY[key], value)


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def _remedy(key: str) -> str:
    if key in _SECTIONS:
        return f"write the table [{key}] with what you want to set in it"
    # A key may also be right but in the wrong table, or in none.
    same_name = [field.key for field in FIELDS if field.name == key.rpartition(".")[2]]
    nearest = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.6) or same_name
    return f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(_BY_KEY)}"


def _from_file(path: Path, field: RecipeField, value: Any) -> Any:
    def wrong(rule: str) -> ConfigurationError:
        return ConfigurationError(f"the recipe {path}: {field.key} is {value!r}; it must be {rule}")

    # bool is an int in Python, but `rounds = true` is a mistake.
    match field.kind, value:
        case kind, int() if kind in (int, float) and not isinstance(value, bool):
            return kind(value)
        case kind, float() if kind is float:
            return value
        case kind, str() if kind is str:
            return value
        case kind, list() if kind == tuple[str, ...]:
            if all(isinstance(item, str) for item in value):
                return tuple(value)
            raise wrong("a list of strings")
        case kind, list() if kind == tuple[float, ...]:
            if all(isinstance(item, int | float) for item in value):
                return tuple(float(item) for item in value)
            raise wrong("a list of numbers")
    names = {int: "a whole number", float: "a number", str: "a string"}
    raise wrong(names.get(field.kind, "a list"))


def _from_option(field: RecipeField, value: Any) -> Any:
    if field.kind == tuple[str, ...]:
        return tuple(item.strip() for item in value.split(","))
    if field.kind == tuple[float, ...]:
        try:
            return tuple(float(item) for item in value.split(","))
        except ValueError:
            raise ConfigurationError(
                f"{field.option().flag} is {value!r}; it must be numbers with commas between them"
            ) from None
    return value
