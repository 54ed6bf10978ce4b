"""The PromQL expressions of the dashboards and rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from k8s.components.monitoring.generate import FOLDER, RULES

DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))

_COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
_SETS = frozenset({"and", "or", "unless"})
_OFFSET = re.compile(r" offset \w+")
# Longer than the demo.
_VARIABLES = {
    "$__rate_interval": "5m",
    "$__range": "5m",
    "$window": "5m",
    "$namespace": ".*",
    "$run": ".+",
    "$kind": ".+",
    "$service": ".+",
}


@dataclass(frozen=True, slots=True)
class Found:
    """An expression and its place."""

    where: str
    text: str

    @property
    def filled_in(self) -> str:
        """Return it with all values of the dashboard's variables chosen."""
        text = self.text
        for name, value in _VARIABLES.items():
            text = text.replace(name, value)
        return text


def in_dashboards() -> list[Found]:
    """Return the expressions of all panels and annotations."""
    return [found for file in DASHBOARDS for found in _of_dashboard(file)]


def in_rules(kind: str) -> list[Found]:
    """Return the expressions of all rules of a kind, "alert" or "record"."""
    return [Found(rule[kind], rule["expr"]) for rule in rules() if kind in rule]


def rules() -> list[dict[str, Any]]:
    """Return all rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _of_dashboard(file: Path) -> Iterator[Found]:
    dashboard = json.loads(file.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Found(f"{file.stem}: {panel['title']}", target["expr"])
    for annotation in dashboard["annotations"]["list"]:
        yield Found(f"{file.stem}: {annotation['name']}", annotation["expr"])


def uncompared(text: str) -> list[str]:
    """Return the operands of the conditions of an alert, without its limits.

    Of `a / b > 0.9 and c == 1` these are `a / b` and `c`; of `absent(a)` it is `a`, and so it is
    of `a offset 1h`: an hour ago there was nothing.
    """
    return [_OFFSET.sub("", part.prettify()) for part in _operands(promql.parse(text))]


def _operands(node: Any) -> Iterator[Any]:
    if isinstance(node, promql.ParenExpr):
        yield from _operands(node.expr)
    elif isinstance(node, promql.BinaryExpr) and str(node.op) in _SETS:
        yield from _operands(node.lhs)
        yield from _operands(node.rhs)
    elif isinstance(node, promql.BinaryExpr) and str(node.op) in _COMPARISONS:
        for side in (node.lhs, node.rhs):
            if not _is_number(side):
                yield side
    elif isinstance(node, promql.Call) and node.func.name == "absent":
        yield from node.args
    else:
        yield node


def _is_number(node: Any) -> bool:
    if isinstance(node, promql.ParenExpr):
        return _is_number(node.expr)
    if isinstance(node, promql.BinaryExpr):
        return _is_number(node.lhs) and _is_number(node.rhs)
    return isinstance(node, promql.NumberLiteral)
