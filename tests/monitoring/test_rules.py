"""Alerts that fire when they should, tell somebody what to do, and are the same everywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.components.monitoring.generate import FOLDER, RULES
from k8s.components.monitoring.sources.panels import DOCS
from tests.monitoring.expressions import rules
from tests.monitoring.pages import has_anchor
from tests.monitoring.prometheus import program, scraping

STORIES = Path(__file__).with_name("alerts.test.yaml")


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.integration
def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", RULES)


@pytest.mark.integration
def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", STORIES)


@pytest.mark.integration
def test_prometheus_takes_the_way_to_scrape(tmp_path: Path) -> None:
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(scraping({"coordinator": ["127.0.0.1:7402"]})))
    promtool("check", "config", configuration)


def test_every_alert_is_in_a_story_in_which_it_fires() -> None:
    stories = yaml.safe_load(STORIES.read_text())["tests"]
    told = [check for story in stories for check in story["promql_expr_test"]]
    fires = [sample["labels"] for check in told for sample in check["exp_samples"]]
    for alert in alerts():
        label = f'alertname="{alert["alert"]}"'
        assert any(label in one for one in fires), f"no story for {alert['alert']}"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    told = alert["annotations"]
    assert told.keys() == {"summary", "description", "runbook_url"}
    page = told["runbook_url"].removeprefix(f"{DOCS}/")
    assert page.startswith("runbooks.md#")
    assert has_anchor(page), page
    assert f"`{alert['alert']}`" in (FOLDER.parents[2] / "docs" / "runbooks.md").read_text()


def test_the_operator_gets_the_same_rules() -> None:
    wrapped = yaml.safe_load((FOLDER / "prometheus-rule.yaml").read_text())
    assert wrapped["kind"] == "PrometheusRule"
    assert wrapped["spec"] == yaml.safe_load(RULES.read_text())
