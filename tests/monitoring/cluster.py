"""Cluster metrics of a healthy installation, for tests without a cluster.

The rules use these names and labels of kubelet and kube-state-metrics.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge

from hfmds.service.monitoring.metrics_server import MetricsServer

_JOBS = ("coordinator-backup", "synthesis-store-backup", "database-backup")
_CLAIMS = ("data-postgres-0", "data-seaweedfs-0", *_JOBS)


@contextmanager
def cluster() -> Iterator[str]:
    """Return the address that Prometheus scrapes."""
    registry = CollectorRegistry()

    def add_gauge(name: str, label: str, names: tuple[str, ...], value: float) -> None:
        gauge = Gauge(name, "As Kubernetes has it.", ("namespace", label), registry=registry)
        for label_value in names:
            gauge.labels("hfmds", label_value).set(value)

    add_gauge("kubelet_volume_stats_capacity_bytes", "persistentvolumeclaim", _CLAIMS, 100e9)
    add_gauge("kubelet_volume_stats_available_bytes", "persistentvolumeclaim", _CLAIMS, 60e9)
    add_gauge("kube_cronjob_created", "cronjob", _JOBS, time.time() - 3 * 86400)
    add_gauge("kube_cronjob_status_last_successful_time", "cronjob", _JOBS, time.time() - 3600)
    add_gauge("kube_cronjob_spec_suspend", "cronjob", _JOBS, 0)
    with MetricsServer("127.0.0.1:0", registry, lambda: None) as server:
        yield server.address
