"""A real Prometheus that scrapes a real run has all data of the dashboards and rules.

Of a dashboard, every expression gives at least one number, with its variables filled in; of a
recording rule likewise. Of an alert, all that it compares does. In a run that is well no comparison
should come true, but those of certificates, which are short-lived here. What a cluster would tell
of itself is made up (`cluster.py`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.monitoring.cluster import cluster
from tests.monitoring.demo import COMPLETED, ENDLESS, Demo
from tests.monitoring.expressions import in_dashboards, in_rules, uncompared
from tests.monitoring.prometheus import Prometheus
from tests.support.programs import Programs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]  # a run and its scrapes take long


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    """A Prometheus that saw one run from start to end and still sees another."""
    folder = tmp_path_factory.mktemp("monitoring")
    with Programs(folder) as programs, cluster() as of_cluster:
        demo = Demo(folder, programs)
        with Prometheus(folder, demo.pods, of_cluster) as server:
            server.wait_until("count(up == 1) == 6")  # later scrapes would miss the start
            await demo.run()
            # A few scrapes of asynchronous rounds that began later.
            staleness = "hfmds_coordinator_update_staleness_rounds_count"
            server.wait_until(f"increase({staleness}[1m]) > 3")
            server.wait_until(f'hfmds_coordinator_round_number{{run="{ENDLESS}"}} > 5')
            yield server


def test_every_expression_of_the_dashboards_gives_data(prometheus: Prometheus) -> None:
    expressions = in_dashboards()
    assert len(expressions) > 80
    empty = [
        f"{expression.where}\n    {expression.text}"
        for expression in expressions
        if not _data(prometheus, expression.filled_in)
    ]
    assert not empty, "\n".join(empty)


def test_every_recording_gives_data(prometheus: Prometheus) -> None:
    empty = [
        expression.where
        for expression in in_rules("record")
        if not _data(prometheus, expression.text)
    ]
    empty += [
        expression.where
        for expression in in_rules("record")
        if not _data(prometheus, expression.where)
    ]
    assert not empty


def test_every_series_of_the_alerts_exists(prometheus: Prometheus) -> None:
    empty = [
        f"{expression.where}\n    {part}"
        for expression in in_rules("alert")
        for part in uncompared(expression.text)
        if not _data(prometheus, part)
    ]
    assert not empty, "\n".join(empty)


def test_rules_are_evaluated_without_an_error(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert len(rules) == len(in_rules("alert")) + len(in_rules("record"))
    assert {rule["health"] for rule in rules} == {"ok"}


def test_a_healthy_run_fires_only_the_certificate_alerts(
    prometheus: Prometheus,
) -> None:
    expiring = ("HfmdsCertificateExpiring", "HfmdsCertificateExpiresTomorrow")
    servers = ("coordinator", "synthesis-store")
    expected = {(name, job): "ends in 23h" for name in expiring for job in servers}
    prometheus.becomes(lambda: _firing(prometheus).keys() == expected.keys())
    firing = _firing(prometheus)
    assert firing.keys() == expected.keys()
    assert all(expected[alert] in firing[alert] for alert in expected)


def test_variables_of_dashboards_list_existing_values(prometheus: Prometheus) -> None:
    assert prometheus.label_values("run", "hfmds_coordinator_round_number") == [COMPLETED, ENDLESS]
    kinds = prometheus.label_values("kind", "hfmds_coordinator_funnel_tasks_total")
    assert kinds == ["evaluate", "synthesise", "train"]
    calls = '{__name__=~"hfmds_(coordinator|store)_rpc_requests_total"}'
    assert set(prometheus.label_values("service", calls)) >= {
        "hfmds.v1.AdminService",
        "hfmds.v1.CoordinatorService",
        "hfmds.v1.SynthesisStoreService",
    }


def _firing(prometheus: Prometheus) -> dict[tuple[str, str], str]:
    """Return the summaries of firing alerts, by name and program."""
    return {
        (rule["name"], alert["labels"].get("job", "")): alert["annotations"]["summary"]
        for rule in prometheus.rules()
        if rule["type"] == "alerting"
        for alert in rule["alerts"]
        if alert["state"] == "firing"
    }


def _data(prometheus: Prometheus, expression: str) -> bool:
    """Return whether an expression has a number that Grafana can draw."""

    def has_number() -> bool:
        series = prometheus.query(expression)
        return any(not math.isnan(float(sample["value"][1])) for sample in series)

    return prometheus.becomes(has_number)
