"""docs/metrics.md lists the metrics that there are, with the labels and the values they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase

from coordinator.monitoring.device_standing import HeadCount
from coordinator.monitoring.live_counts import RunCensus
from coordinator.monitoring.metrics import Metrics
from edge_client.metrics import EdgeMetrics
from hfmds.domain.learning import LeakageSummary
from hfmds.domain.tasks import TaskStage
from hfmds.service.monitoring.program_metrics import show_program, show_readiness
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.security.tls import TlsFiles
from synthesis_store.monitoring.inventory import Stock
from synthesis_store.monitoring.metrics import StoreMetrics

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
HEADER = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
OPEN_LABELS = {"run", "service", "method", "code", "version", "class", "peer"}
"""Labels whose values are explained on the page, not listed."""


def programs() -> CollectorRegistry:
    registry = CollectorRegistry()
    files = TlsFiles(*(Path("certificate.pem"),) * 3)
    show_program("PROGRAM", registry, files, {"data": Path("/"), "content": Path("/")})
    return registry


def servers() -> CollectorRegistry:
    registry = CollectorRegistry()
    RpcMetrics("PROGRAM", registry)
    show_readiness("PROGRAM", registry, lambda: None)
    return registry


def coordinator() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.count(devices=dict, runs=RunCensus)
    metrics.watch(drained=bool, stages=lambda: dict.fromkeys(TaskStage, 0))
    metrics.know(members=HeadCount)
    return registry


def store() -> CollectorRegistry:
    registry = CollectorRegistry()
    StoreMetrics(registry).watch(Stock)
    return registry


def edge() -> CollectorRegistry:
    registry = CollectorRegistry()
    leakage = LeakageSummary(1, 1, 1, 1, 1, 1)
    EdgeMetrics(registry).observe_batch(leakage, leakage, accuracy=1.0)
    return registry


SECTIONS = {
    "Every program": programs,
    "Every server": servers,
    "Coordinator": coordinator,
    "Synthesis store": store,
    "Edge client": edge,
}


def expected_table(registry: CollectorRegistry) -> str:
    rows = []
    for collector in list(registry._collector_to_names):
        labels = collector._labelnames if isinstance(collector, MetricWrapperBase) else ()
        rows += [
            row(family, labels or getattr(family, "_labelnames", ()))
            for family in collector.collect()
            if not family.name.startswith("process_")
        ]
    return "\n".join([*HEADER, *sorted(rows)])


def row(family: Metric, labels: tuple[str, ...]) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    shown = [label_text(family, label) for label in labels]
    shown_name = name.replace("PROGRAM", "*")
    return f"| `{shown_name}` | {family.type} | {', '.join(shown)} | {family.documentation} |"


def label_text(family: Metric, label: str) -> str:
    values = sorted({s.labels[label] for s in family.samples if label in s.labels})
    if label in OPEN_LABELS or not values:
        return f"`{label}`"
    return f"`{label}` ({', '.join(values)})"


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_has_every_metric_as_it_is(section: str) -> None:
    table = expected_table(SECTIONS[section]())
    found = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    assert table in found, f"put this under '## {section}' in docs/metrics.md:\n{table}"


def test_every_label_whose_values_are_not_listed_is_explained() -> None:
    explained = PAGE.read_text().partition("\n## Labels\n")[2]
    for label in OPEN_LABELS:
        assert f"\n| `{label}` |" in explained
