"""Configs of experiments: YAML in, an `Experiment` of one size out, or an error that says where.

    title: Accuracy of eight methods      # one line, for lists and tables
    paper: Table 2                        # what of the paper it is
    include: common.yaml                  # a file beside it, on which this one builds
    settings: {rounds: 100}               # of all trials; the keys are in `vocabulary`
    known_splits: {...}                   # names for settings, for `splits`
    known_arms: {...}                     # the same for `arms`
    splits: [Dir(0.01), IID: {split.kind: iid}]
    arms: [FedAvg, my own: {method: hfmds, hfmds.mu: 3}]
    controls: [FedAvg, noise pool]        # arms that the others are compared with
    sweep: {setting: hfmds.mu, label: mu, values: [0, 1]}
    seeds: [0, 1, 2]
    last_rounds: 5                        # whose mean accuracy is reported
    report: accuracy                      # or: cost, convergence, tsne
    tsne: {panels: [FedMix], mu: [0, 1], classes: 5}
    paper_numbers: {accuracy: {FedAvg: {Dir(0.01): 28.53 ± 6.74}}}
    sizes: {small: {settings: {...}, seeds: [0]}}   # what is different in this size

Of the same setting made twice the later in this list counts: the included file, its size, the file,
its size, the split, the sweep, the arm.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from hfmds.algorithm.methods.settings import METHODS
from hfmds.errors import ConfigurationError
from hfmds.experiments.vocabulary import KEYS, Settings, Value, nearest, settings_from

REPORTS = ("accuracy", "cost", "convergence", "tsne")
MEASURES = ("accuracy", "psnr", "gflops")
"""Of what the paper has numbers."""

_SIZED = {
    "about", "settings", "known_splits", "known_arms", "splits", "arms", "controls", "sweep",
    "tsne", "seeds", "last_rounds", "paper_numbers",
}  # fmt: skip
_TOP = _SIZED | {"title", "paper", "include", "report", "sizes"}
_PAPER_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Sweep:
    """One setting that is varied."""

    setting: str
    label: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Tsne:
    """What the t-SNE figure shows."""

    panels: tuple[str, ...]  # arms
    mu: tuple[float, ...]  # for HFMDS-FL
    classes: int


@dataclass(frozen=True, slots=True)
class PaperNumber:
    """A number of the paper, with its deviation if the paper has one."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """What one command runs: every arm under every split, for every swept value and seed."""

    name: str
    size: str
    title: str
    paper: str
    about: str
    report: str
    settings: Settings
    splits: dict[str, Settings]
    arms: dict[str, Settings]
    controls: tuple[str, ...]
    sweep: Sweep | None
    seeds: tuple[int, ...]
    last_rounds: int
    # By measure, then arm, then split; a number that is for all splits has the split "".
    paper_numbers: dict[str, dict[str, dict[str, PaperNumber]]] = field(default_factory=dict)
    tsne: Tsne | None = None

    @property
    def cells(self) -> int:
        """How many trials it is, if no two are the same."""
        values = len(self.sweep.values) if self.sweep else 1
        return len(self.arms) * len(self.splits) * values * len(self.seeds)

    def with_seeds(self, seeds: tuple[int, ...]) -> Experiment:
        """The same with other seeds."""
        return replace(self, seeds=seeds)

    def require_arms(self, arms: tuple[str, ...]) -> tuple[str, ...]:
        """These arms, if it has them all."""
        for arm in arms:
            if arm not in self.arms:
                raise ConfigurationError(
                    f"experiment {self.name} has no arm {arm!r}; {nearest(arm, self.arms)}"
                )
        return arms


def read_experiment(path: Path, size: str) -> Experiment:
    """The experiment of a file, in one of its sizes."""
    layers = [
        layer for document, where in _documents(path) for layer in _layers(document, where, size)
    ]
    known_sizes = sorted({name for document, _ in _documents(path) for name in document["sizes"]})
    if size not in known_sizes:
        raise ConfigurationError(f"{path.name} has no size {size!r}; {nearest(size, known_sizes)}")
    merged = _merge(layers)
    for needed in ("title", "settings", "splits", "arms", "seeds"):
        if not merged.get(needed):
            raise ConfigurationError(f"{path.name} has no {needed}; say what they are")
    controls = tuple(merged.get("controls", ()))
    tsne = merged.get("tsne")
    for key, names in (("controls", controls), ("tsne", tsne.panels if tsne else ())):
        for name in names:
            if name not in merged["arms"]:
                raise ConfigurationError(
                    f"{path.name}: {key}: {name!r} is not among the arms; add it to them, "
                    f"or {nearest(name, merged['arms'])}"
                )
    if (merged.get("report") == "tsne") != (tsne is not None):
        raise ConfigurationError(f"{path.name}: report: tsne and the key tsne go together")
    return Experiment(
        name=path.stem,
        size=size,
        title=merged["title"],
        paper=merged.get("paper", ""),
        about=merged.get("about", ""),
        report=merged.get("report", REPORTS[0]),
        settings=merged["settings"],
        splits=merged["splits"],
        arms=merged["arms"],
        controls=controls,
        sweep=merged.get("sweep"),
        seeds=merged["seeds"],
        last_rounds=merged.get("last_rounds", 1),
        paper_numbers=merged.get("paper_numbers", {}),
        tsne=tsne,
    )


def sizes_of(path: Path) -> tuple[str, ...]:
    """The sizes a config comes in."""
    return tuple(dict.fromkeys(name for doc, _ in _documents(path) for name in doc["sizes"]))


# --- reading ------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice; YAML would take the last and say nothing."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _documents(path: Path) -> list[tuple[dict[str, Any], str]]:
    """The file behind those it builds on, each with its name."""
    files: list[tuple[dict[str, Any], str]] = []
    seen: set[Path] = set()
    following: Path | None = path
    while following:
        if following.resolve() in seen:
            raise ConfigurationError(f"{following.name} includes itself; remove the include")
        seen.add(following.resolve())
        document = _read(following)
        files.insert(0, (document, following.name))
        included = document.get("include")
        following = following.parent / included if included else None
    return files


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise ConfigurationError(f"cannot read the config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the config {path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"the config {path} is empty or a list; it must have keys")
    _require_known(document, _TOP, path.name)
    for key in ("title", "paper", "about", "include", "report"):
        if not isinstance(document.get(key, ""), str):
            raise ConfigurationError(f"{path.name}: {key} is {document[key]!r}; it must be text")
    if document.get("report", REPORTS[0]) not in REPORTS:
        raise ConfigurationError(
            f"{path.name}: report is {document['report']!r}; it must be one of {', '.join(REPORTS)}"
        )
    document["sizes"] = document.get("sizes") or {}
    if not isinstance(document["sizes"], dict):
        raise ConfigurationError(f"{path.name}: sizes must be sizes by name")
    return document


def _require_known(document: Mapping[Any, Any], known: set[str], where: str) -> None:
    for key in document:
        if key not in known:
            raise ConfigurationError(
                f"{where} has an unknown key {key}; {nearest(str(key), sorted(known))}"
            )


def _layers(document: dict[str, Any], where: str, size: str) -> list[tuple[dict[str, Any], str]]:
    """A file, and what it says of a size."""
    layers = [({key: value for key, value in document.items() if key != "sizes"}, where)]
    if size in document["sizes"]:
        sized, where = document["sizes"][size] or {}, f"{where}: size {size}"
        if not isinstance(sized, dict):
            raise ConfigurationError(f"{where} is {sized!r}; it must have keys, such as settings")
        _require_known(sized, _SIZED, where)
        layers.append((sized, where))
    return layers


# --- putting together ---------------------------------------------------------------------------


def _merge(layers: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    merged: dict[str, Any] = {"settings": {}, "known_splits": {}, "known_arms": {}}
    for layer, where in layers:
        for key, value in layer.items():
            here = f"{where}: {key}"
            match key:
                case "settings":
                    merged[key] = {**merged[key], **settings_from(value, here)}
                case "known_splits" | "known_arms":
                    merged[key] = {**merged[key], **_named(value, here)}
                case "splits" | "arms":
                    merged[key] = (value, here)  # when all names are known
                case "sweep":
                    merged[key] = _sweep(value, here)
                case "tsne":
                    merged[key] = _tsne(value, here)
                case "seeds":
                    merged[key] = _whole_numbers(value, here)
                case "last_rounds":
                    merged[key] = _count(value, here)
                case "controls":
                    merged[key] = _texts(value, here)
                case "paper_numbers":
                    merged[key] = _paper_numbers(value, here)
                case _:
                    merged[key] = value
    for key in ("splits", "arms"):
        if key in merged:
            value, where = merged[key]
            merged[key] = _chosen(value, where, merged[f"known_{key}"])
    for name, settings in merged.get("arms", {}).items():
        method = settings.get("method", merged["settings"].get("method", ""))
        if method not in METHODS:
            raise ConfigurationError(
                f"arm {name!r}: method is {method!r}; {nearest(str(method), METHODS)}"
            )
    return merged


def _named(value: object, where: str) -> dict[str, Settings]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be names with their settings")
    return {str(name): settings_from(own, f"{where}: {name}") for name, own in value.items()}


def _chosen(value: object, where: str, known: Mapping[str, Settings]) -> dict[str, Settings]:
    """A list of names, and of new names with their settings."""
    if not isinstance(value, list) or not value:
        raise ConfigurationError(f"{where} is {value!r}; it must be a list of names")
    chosen: dict[str, Settings] = {}
    for item in value:
        match item:
            case str():
                if item not in known:
                    raise ConfigurationError(
                        f"{where}: {item!r} is not known; {nearest(item, known)} Or write "
                        f"{item}: with its settings"
                    )
                named = {item: known[item]}
            case dict() if len(item) == 1:
                named = _named(item, where)
            case _:
                raise ConfigurationError(
                    f"{where}: {item!r} is neither a name nor one name with its settings"
                )
        for name, settings in named.items():
            if name in chosen:
                raise ConfigurationError(f"{where}: {name} is there twice; remove one of them")
            chosen[name] = settings
    return chosen


def _sweep(value: object, where: str) -> Sweep:
    if not isinstance(value, dict) or not {"setting", "values"} <= value.keys():
        raise ConfigurationError(f"{where} must have a setting and values")
    _require_known(value, {"setting", "label", "values"}, where)
    setting, values = value["setting"], value["values"]
    if not isinstance(values, list) or not values:
        raise ConfigurationError(f"{where}: values is {values!r}; it must be a list of values")
    checked = tuple(settings_from({setting: one}, where)[setting] for one in values)
    assert setting in KEYS
    return Sweep(setting, str(value.get("label", setting)), checked)


def _tsne(value: object, where: str) -> Tsne:
    if not isinstance(value, dict) or value.keys() != {"panels", "mu", "classes"}:
        raise ConfigurationError(f"{where} must have panels, mu and classes")
    mu = tuple(settings_from({"hfmds.mu": one}, where)["hfmds.mu"] for one in value["mu"])
    classes = _count(value["classes"], where)
    return Tsne(_texts(value["panels"], where), tuple(float(one or 0) for one in mu), classes)


def _count(value: object, where: str) -> int:
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"{where} is {value!r}; it must be at least 1")
    return value


def _whole_numbers(value: object, where: str) -> tuple[int, ...] | Any:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
        raise ConfigurationError(f"{where} is {value!r}; it must be whole numbers from 0 on")
    if len(set(numbers)) < len(numbers):
        raise ConfigurationError(f"{where} is {value!r}; each may be there once")
    return tuple(numbers)


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"{where} is {value!r}; it must be a list of names")
    return tuple(value)


def _paper_numbers(value: object, where: str) -> dict[str, dict[str, dict[str, PaperNumber]]]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be measures, such as accuracy, with numbers")
    _require_known(value, set(MEASURES), where)
    return {
        measure: {
            str(arm): {
                str(split): _paper_number(number, f"{where}: {arm}")
                for split, number in (cells.items() if isinstance(cells, dict) else [("", cells)])
            }
            for arm, cells in arms.items()
        }
        for measure, arms in value.items()
    }


def _paper_number(value: object, where: str) -> PaperNumber:
    match = _PAPER_NUMBER.fullmatch(str(value))
    if not match:
        raise ConfigurationError(f"{where}: {value!r} must be a number, or like 28.53 ± 6.74")
    mean, deviation = match.groups()
    return PaperNumber(float(mean), None if deviation is None else float(deviation))
