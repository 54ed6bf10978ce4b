"""Fills in the parts of docs/ that come from the code: settings, commands, metrics and so on.

    make docs

A page marks each generated part with two comments, and everything else on it is written by hand:

    <!-- generated: settings -->
    ...
    <!-- end of settings -->

tests/test_docs.py compares the pages with the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from prometheus_client import CollectorRegistry, Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coordinator.monitoring.live_counts import Counts, LiveCounts
from coordinator.monitoring.metrics import Metrics
from coordinator.settings import CoordinatorSettings
from edge_client.metrics import EdgeMetrics
from edge_client.settings import EdgeSettings
from hfmds import errors
from hfmds.cli.app import app
from hfmds.cli.recipe.keys import KEYS
from hfmds.cli.settings import CommandSettings
from hfmds.domain.learning import LeakageSummary
from hfmds.service.monitoring.program_metrics import show_program, show_readiness
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.security.tls import TlsFiles
from hfmds.service.status import STATUS_OF
from synthesis_store.monitoring.inventory import Inventory
from synthesis_store.monitoring.inventory_metrics import InventoryMetrics
from synthesis_store.monitoring.metrics import StoreMetrics
from synthesis_store.pools.refused_batches import REFUSAL_REASONS
from synthesis_store.settings import StoreSettings

FOLDER = Path(__file__).parent

_PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


# --- Settings ---------------------------------------------------------------------------------

_PROGRAMS: Mapping[str, type[BaseModel]] = {
    "coordinator": CoordinatorSettings,
    "store": StoreSettings,
    "edge": EdgeSettings,
    "hfmds": CommandSettings,
}


def settings() -> str:
    """One row for each variable and default, with the programs that read it."""
    programs: dict[tuple[str, str, str], list[str]] = {}
    for program, model in _PROGRAMS.items():
        for name, field in model.model_fields.items():
            row = (f"HFMDS_{name.upper()}", _default(field), field.description or "")
            programs.setdefault(row, []).append(program)
    return table(
        ["variable", "read by", "default", "meaning"],
        [
            [f"`{variable}`", ", ".join(programs[row]), default, meaning]
            for row in sorted(programs)
            for variable, default, meaning in [row]
        ],
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value in (None, "") else f"`{value}`"


# --- Commands ---------------------------------------------------------------------------------


def commands() -> str:
    """One row for each command, with its arguments and options."""
    rows = [
        [f"`{' '.join([path, *_arguments(command)])}`", _summary(command), _options(command)]
        for path, command in _leaves("hfmds", typer.main.get_command(app))
    ]
    return table(["command", "what it does", "options"], rows)


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command that runs something, by its full name."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from _leaves(f"{path} {name}", child)


def _arguments(command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    names = [str(a.metavar or a.name).upper().strip("[]") for a in arguments]
    return [name if a.required else f"[{name}]" for a, name in zip(arguments, names, strict=True)]


def _summary(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def _options(command: Any) -> str:
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    return " ".join(f"`{max(p.opts, key=len)}`" for p in options)


# --- Recipes ----------------------------------------------------------------------------------


def recipe_keys() -> str:
    """One row for each key of a recipe."""
    rows = [
        [f"`{key.key}`", key.rule, key.shown_default, key.field.description or ""]
        for key in KEYS.values()
    ]
    return table(["key", "value", "default", "meaning"], rows)


# --- Metrics ----------------------------------------------------------------------------------

_OPEN_LABELS = {"run", "service", "method", "code", "version", "class", "peer"}
"""Labels whose values the page explains and does not list."""


def every_program() -> CollectorRegistry:
    """What each program exports; `PROGRAM` stands for its name."""
    registry = CollectorRegistry()
    files = TlsFiles(*(Path("certificate.pem"),) * 3)
    show_program("PROGRAM", registry, files, {"data": Path("/"), "content": Path("/")})
    return registry


def every_server() -> CollectorRegistry:
    """What each program that serves gRPC exports."""
    registry = CollectorRegistry()
    RpcMetrics("PROGRAM", registry)
    show_readiness("PROGRAM", registry, lambda: None)
    return registry


def coordinator() -> CollectorRegistry:
    """What the coordinator exports besides."""
    registry = CollectorRegistry()
    Metrics(registry)
    LiveCounts(Counts, registry).refresh()
    return registry


def store() -> CollectorRegistry:
    """What the synthesis store exports besides."""
    registry = CollectorRegistry()
    StoreMetrics(registry, REFUSAL_REASONS)
    InventoryMetrics(Inventory, registry).refresh()
    return registry


def edge() -> CollectorRegistry:
    """What a device exports besides."""
    registry = CollectorRegistry()
    leakage = LeakageSummary(1, 1, 1, 1, 1, 1)
    EdgeMetrics(registry).observe_batch(leakage, leakage, accuracy=1.0)
    return registry


def metrics_table(registry: CollectorRegistry) -> str:
    """One row for each metric family."""
    families = [f for f in registry.collect() if not f.name.startswith("process_")]
    labels = _label_names(registry)
    rows = [_metric_row(family, labels.get(family.name, ())) for family in families]
    return table(["metric", "type", "labels", "meaning"], sorted(rows))


def _label_names(registry: CollectorRegistry) -> dict[str, tuple[str, ...]]:
    """The labels by family; the library has no public way to ask before the first sample."""
    names = {}
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            own = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
            names[family.name] = tuple(own)
    return names


def _metric_row(family: Metric, labels: tuple[str, ...]) -> list[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    shown = ", ".join(_label_text(family, label) for label in labels)
    return [f"`{name.replace('PROGRAM', '*')}`", family.type, shown, family.documentation]


def _label_text(family: Metric, label: str) -> str:
    values = sorted({s.labels[label] for s in family.samples if label in s.labels})
    if label in _OPEN_LABELS or not values:
        return f"`{label}`"
    return f"`{label}` ({', '.join(values)})"


# --- Errors -----------------------------------------------------------------------------------


def error_classes() -> str:
    """One row for each error, with its status code, exit code and meaning."""
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    return table(
        ["error", "gRPC status", "exit code", "meaning"],
        [
            [f"`{c.__name__}`", f"`{_status(c)}`", str(c.exit_code), str(c.__doc__).split("\n")[0]]
            for c in classes
            if issubclass(c, errors.HfmdsError)
        ],
    )


def _status(error: type[errors.HfmdsError]) -> str:
    return next(STATUS_OF[c].name for c in error.__mro__ if c in STATUS_OF)


# --- Pages ------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "recipe": recipe_keys,
    "metrics-program": lambda: metrics_table(every_program()),
    "metrics-server": lambda: metrics_table(every_server()),
    "metrics-coordinator": lambda: metrics_table(coordinator()),
    "metrics-store": lambda: metrics_table(store()),
    "metrics-edge": lambda: metrics_table(edge()),
    "errors": error_classes,
}


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", r"\|") for c in row) + " |" for row in lines)


def pages() -> dict[Path, str]:
    """Every page that has generated parts, as it should be."""
    texts = {page: page.read_text() for page in sorted(FOLDER.glob("*.md"))}
    return {page: _filled(text) for page, text in texts.items() if _PART.search(text)}


def _filled(text: str) -> str:
    return _PART.sub(lambda m: f"{m[1]}{PARTS[m[2]]()}\n{m[3]}", text)


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
