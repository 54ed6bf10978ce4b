"""Alerts fire when they should, link to a runbook, and are the same in both forms."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.components.monitoring.generate import FOLDER, RULES
from k8s.components.monitoring.sources.panels import DOCS
from tests.monitoring.expressions import rules
from tests.monitoring.pages import PAGES, has_anchor
from tests.monitoring.prometheus import program, scraping

STORIES = sorted(Path(__file__).parent.glob("*.test.yaml"))


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.integration
def test_prometheus_accepts_the_rules() -> None:
    promtool("check", "rules", RULES)


@pytest.mark.integration
def test_alerts_fire_exactly_when_expected() -> None:
    promtool("test", "rules", *STORIES)


@pytest.mark.integration
def test_prometheus_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(scraping({"coordinator": ["127.0.0.1:7402"]})))
    promtool("check", "config", configuration)


def labels_when_it_fires(alert: str) -> set[str]:
    """Return the labels of an alert in its scenarios; none without a scenario."""
    stories = [story for path in STORIES for story in yaml.safe_load(path.read_text())["tests"]]
    checks = [check for story in stories for check in story["promql_expr_test"]]
    fired = [sample["labels"] for check in checks for sample in check["exp_samples"]]
    return {
        name
        for labels in fired
        if f'alertname="{alert}"' in labels
        for name in re.findall(r"(\w+)=", labels)
    }


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_names_its_runbook(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    annotations = alert["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    page = annotations["runbook_url"].removeprefix(f"{DOCS}/")
    assert page.startswith("runbooks.md#")
    assert has_anchor(page), page
    assert f"`{alert['alert']}`" in (PAGES / "runbooks.md").read_text()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_has_a_test_with_its_labels(alert: dict[str, Any]) -> None:
    labels = labels_when_it_fires(alert["alert"])
    assert "alertname" in labels
    for text in alert["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels


def test_the_operator_gets_the_same_rules() -> None:
    wrapped = yaml.safe_load((FOLDER / "prometheus-rule.yaml").read_text())
    assert wrapped["kind"] == "PrometheusRule"
    assert wrapped["spec"] == yaml.safe_load(RULES.read_text())
