"""Dashboards are valid for Grafana, and their texts say what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from grafana_foundation_sdk.models import units

from k8s.components.monitoring.generate import written
from k8s.components.monitoring.sources.panels import DOCS
from tests.monitoring.expressions import DASHBOARDS, Found, in_dashboards, in_rules
from tests.monitoring.pages import has_anchor

_UNITS = {value for value in vars(units).values() if isinstance(value, str)}
_BUILT_IN = {"__rate_interval", "__range"}


@pytest.fixture(params=DASHBOARDS, ids=lambda file: file.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    file: Path = request.param
    loaded: dict[str, Any] = json.loads(file.read_text())
    assert loaded["uid"] == file.stem
    return loaded


def test_dashboard_files_match_their_sources() -> None:
    for file, content in written().items():
        remedy = "make dashboards"
        assert file.read_text() == content, f"{file.name} is out of date; {remedy}"
    assert set(DASHBOARDS) <= written().keys()


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    occupied = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not occupied & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        occupied |= cells
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_every_panel_has_a_description(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["description"].endswith((".", "?")), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"] in _UNITS, panel["title"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_dashboards_have_the_variables_they_use(dashboard: dict[str, Any]) -> None:
    offered = {variable["name"] for variable in dashboard["templating"]["list"]}
    text = json.dumps([panel.get("targets", ()) for panel in dashboard["panels"]])
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert used - _BUILT_IN == offered


def test_pages_linked_from_dashboards_exist(dashboard: dict[str, Any]) -> None:
    pages = re.findall(rf"{DOCS}/([^)\"]+)", json.dumps(dashboard))
    assert "runbooks.md" in pages
    for page in pages:
        assert has_anchor(page), page


@pytest.mark.parametrize(
    "expression",
    [*in_dashboards(), *in_rules("alert"), *in_rules("record")],
    ids=lambda expression: expression.where,
)
def test_expressions_are_promql(expression: Found) -> None:
    promql_parser.parse(expression.filled_in)
    assert "$" not in expression.filled_in
