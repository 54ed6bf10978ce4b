"""Configs of experiments: YAML in, an `Experiment` of one size out, or an error that says where.

    title: Accuracy of eight methods      # one line, for lists and tables
    paper: Table 2                        # what of the paper it is
    include: common.yaml                  # a file beside it, or ours, on which this one builds
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

from pathlib import Path
from typing import Any

import yaml

from hfmds.domain.methods import METHODS
from hfmds.errors import ConfigurationError
from hfmds.experiments import library
from hfmds.experiments.config_values import (
    chosen,
    count,
    named,
    paper_numbers,
    require_known,
    sweep,
    texts,
    tsne,
    whole_numbers,
)
from hfmds.experiments.experiment import REPORTS, Experiment
from hfmds.experiments.vocabulary import layered, nearest, settings_from

_SIZED = {
    "about", "settings", "known_splits", "known_arms", "splits", "arms", "controls", "sweep",
    "tsne", "seeds", "last_rounds", "paper_numbers",
}  # fmt: skip
_TOP = _SIZED | {"title", "paper", "include", "report", "sizes"}


def read_experiment(path: Path, size: str) -> Experiment:
    """The experiment of a file, in one of its sizes."""
    known = sizes_of(path)
    if size not in known:
        raise ConfigurationError(f"{path.name} has no size {size!r}; {nearest(size, known)}")
    merged = _merge(
        [layer for document, where in _documents(path) for layer in _layers(document, where, size)]
    )
    for needed in ("title", "settings", "splits", "arms", "seeds"):
        if not merged.get(needed):
            raise ConfigurationError(f"{path.name} has no {needed}; say what they are")
    _require_consistent(merged, path.name)
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
        controls=merged.get("controls", ()),
        sweep=merged.get("sweep"),
        seeds=merged["seeds"],
        last_rounds=merged.get("last_rounds", 1),
        paper_numbers=merged.get("paper_numbers", {}),
        tsne=merged.get("tsne"),
    )


def sizes_of(path: Path) -> tuple[str, ...]:
    """The sizes a config comes in."""
    return tuple(dict.fromkeys(name for doc, _ in _documents(path) for name in doc["sizes"]))


# --- reading ------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice; YAML would take the last and say nothing.

    As written: what `<<: *others` brings along may be there too, and then the own one counts.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.composer.ComposerError(
                        None, None, f"{key.value} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return node


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
        following = _beside(following, included) if included else None
    return files


def _beside(path: Path, included: str) -> Path:
    beside, ours = path.parent / included, library.FOLDER / included
    return ours if ours.is_file() and not beside.exists() else beside


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
    require_known(document, _TOP, path.name)
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


def _layers(document: dict[str, Any], where: str, size: str) -> list[tuple[dict[str, Any], str]]:
    """A file, and what it says of a size."""
    layers = [({key: value for key, value in document.items() if key != "sizes"}, where)]
    if size in document["sizes"]:
        sized, where = document["sizes"][size] or {}, f"{where}: size {size}"
        if not isinstance(sized, dict):
            raise ConfigurationError(f"{where} is {sized!r}; it must have keys, such as settings")
        require_known(sized, _SIZED, where)
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
                    merged[key] = layered(here, merged[key], settings_from(value, here))
                case "known_splits" | "known_arms":
                    merged[key] = {**merged[key], **named(value, here)}
                case "splits" | "arms":
                    merged[key] = (value, here)  # when all names are known
                case "sweep":
                    merged[key] = sweep(value, here)
                case "tsne":
                    merged[key] = tsne(value, here)
                case "seeds":
                    merged[key] = whole_numbers(value, here)
                case "last_rounds":
                    merged[key] = count(value, here)
                case "controls":
                    merged[key] = texts(value, here)
                case "paper_numbers":
                    merged[key] = paper_numbers(value, here)
                case _:
                    merged[key] = value
    for key in ("splits", "arms"):
        if key in merged:
            value, where = merged[key]
            merged[key] = chosen(value, where, merged[f"known_{key}"])
    return merged


def _require_consistent(merged: dict[str, Any], where: str) -> None:
    """Refuse names of arms and splits that are nobody's."""
    arms, figure = merged["arms"], merged.get("tsne")
    for name, settings in arms.items():
        method = settings.get("method", merged["settings"].get("method", ""))
        if method not in METHODS:
            raise ConfigurationError(
                f"{where}: arm {name!r}: method is {method!r}; {nearest(str(method), METHODS)}"
            )
    for key, names in (
        ("controls", merged.get("controls", ())),
        ("tsne", figure.panels if figure else ()),
    ):
        for name in names:
            if name not in arms:
                raise ConfigurationError(
                    f"{where}: {key}: {name!r} is not among the arms; add it to them, or "
                    f"{nearest(name, arms)}"
                )
    if (merged.get("report") == "tsne") != (figure is not None):
        raise ConfigurationError(f"{where}: report: tsne and the key tsne go together; add both")
    # A size may leave out arms and splits that the paper's numbers are for.
    known_arms = {**merged["known_arms"], **arms}
    known_splits = {**merged["known_splits"], **merged["splits"], "": {}}
    for cells_by_arm in merged.get("paper_numbers", {}).values():
        for arm, cells in cells_by_arm.items():
            for name, known in ((arm, known_arms), *((split, known_splits) for split in cells)):
                if name not in known:
                    raise ConfigurationError(
                        f"{where}: paper_numbers: there is no {name!r}; {nearest(name, known)}"
                    )
