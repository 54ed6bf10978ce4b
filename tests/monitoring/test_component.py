"""The rendered manifests of the monitoring component."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.components.monitoring.generate import FOLDER, RULES
from tests.k8s.conftest import MANIFESTS, rendered
from tests.monitoring.expressions import DASHBOARDS

Resource = dict[str, Any]


def of_kind(resources: tuple[Resource, ...], kind: str) -> dict[str, Resource]:
    return {
        resource["metadata"]["name"]: resource for resource in resources if resource["kind"] == kind
    }


def render(folder: Path, *components: str) -> tuple[Resource, ...]:
    """Render the base with these components."""
    paths = [os.path.relpath(MANIFESTS / name, folder) for name in ("base", *components)]
    kustomization = {"resources": paths[:1], "components": paths[1:], "namespace": "hfmds"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return rendered(folder)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Resource, ...]:
    return render(tmp_path_factory.mktemp("monitored"), "components/monitoring")


def test_grafana_finds_every_dashboard(monitored: tuple[Resource, ...]) -> None:
    dashboards = {}
    for resource in of_kind(monitored, "ConfigMap").values():
        assert resource["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(resource)) < 200_000  # kubectl copies it to an annotation
        dashboards |= resource["data"]
    assert dashboards == {file.name: file.read_text() for file in DASHBOARDS}


def test_every_program_is_scraped_where_its_metrics_are(monitored: tuple[Resource, ...]) -> None:
    programs = {**of_kind(monitored, "Deployment"), **of_kind(monitored, "StatefulSet")}
    monitors = of_kind(monitored, "PodMonitor")
    assert monitors.keys() == programs.keys()
    for name, program in programs.items():
        template, spec = program["spec"]["template"], monitors[name]["spec"]
        assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        # The rules identify programs by their jobs.
        assert template["metadata"]["labels"][spec["jobLabel"]] == name
        (endpoint,) = spec["podMetricsEndpoints"]
        ports = [
            port["name"]
            for resource in template["spec"]["containers"]
            for port in resource["ports"]
        ]
        assert endpoint["port"] in ports


def test_network_policies_admit_prometheus_to_scraped_pods() -> None:
    resources = rendered(MANIFESTS / "overlays" / "prod")
    policies = of_kind(resources, "NetworkPolicy")
    monitors = of_kind(resources, "PodMonitor")
    assert monitors.keys() == {"coordinator", "synthesis-store"}  # devices are outside
    for name, monitor in monitors.items():
        policy = policies[name]["spec"]
        assert policy["podSelector"] == monitor["spec"]["selector"]
        (entrance,) = (
            resource for resource in policy["ingress"] if {"port": "metrics"} in resource["ports"]
        )
        labels = {"hfmds.io/may-scrape": "true"}
        assert {"namespaceSelector": {"matchLabels": labels}} in entrance["from"]


def named_in_rules(label: str) -> list[re.Pattern[str]]:
    """Return the label values of cluster metrics that alerts use."""
    return [
        re.compile(resource) for resource in re.findall(rf'{label}=~"([^"]+)"', RULES.read_text())
    ]


def test_alerts_name_existing_volumes_and_jobs(tmp_path: Path) -> None:
    backed_up = render(tmp_path, "components/backup")
    resources = (*rendered(MANIFESTS / "overlays" / "prod"), *backed_up)
    jobs = of_kind(resources, "CronJob").keys()
    claims = {
        f"{template['metadata']['name']}-{name}-0"
        for name, resource in of_kind(resources, "StatefulSet").items()
        for template in resource["spec"].get("volumeClaimTemplates", ())
        if name != "edge-simulator"  # a device has its own metrics
    }
    assert len(jobs) == 3
    for pattern in named_in_rules("cronjob"):
        assert all(pattern.fullmatch(job) for job in jobs)
    backups = of_kind(resources, "PersistentVolumeClaim").keys() & jobs
    assert claims == {"data-postgres-0", "data-seaweedfs-0"}
    assert backups == jobs
    for pattern in named_in_rules("persistentvolumeclaim"):
        assert all(pattern.fullmatch(resource) for resource in claims)
        assert not any(pattern.fullmatch(resource) for resource in backups)  # backups may be full


def test_a_plain_prometheus_gets_the_same_rules(tmp_path: Path) -> None:
    parts = ("components/monitoring/dashboards", "components/monitoring/rules")
    resources = render(tmp_path, *parts)
    assert not [resource for resource in resources if "coreos" in resource["apiVersion"]]
    maps = of_kind(resources, "ConfigMap")
    assert maps["hfmds-rules"]["data"] == {"hfmds.yaml": RULES.read_text()}
    assert len(maps) == 1 + len(DASHBOARDS)


def test_a_plain_prometheus_finds_pods_by_their_annotations(
    monitored: tuple[Resource, ...],
) -> None:
    (scrape,) = yaml.safe_load((FOLDER / "scrape.yaml").read_text())["scrape_configs"]
    kept = {
        rule["source_labels"][0].removeprefix("__meta_kubernetes_pod_"): rule["regex"]
        for rule in scrape["relabel_configs"]
        if rule.get("action") == "keep"
    }
    assert kept == {"annotation_prometheus_io_scrape": "true", "container_port_name": "metrics"}
    for kind in ("Deployment", "StatefulSet"):
        for program in of_kind(monitored, kind).values():
            annotations = program["spec"]["template"]["metadata"]["annotations"]
            assert annotations["prometheus.io/scrape"] == "true"
