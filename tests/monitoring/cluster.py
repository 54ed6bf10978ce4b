"""What a cluster tells Prometheus of itself, where there is none: an installation that is well.

The names and labels are those of kubelet and of kube-state-metrics, which rules of ours ask for.
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

    def tell(name: str, label: str, names: tuple[str, ...], value: float) -> None:
        gauge = Gauge(name, "As Kubernetes has it.", ("namespace", label), registry=registry)
        for one in names:
            gauge.labels("hfmds", one).set(value)

    tell("kubelet_volume_stats_capacity_bytes", "persistentvolumeclaim", _CLAIMS, 100e9)
    tell("kubelet_volume_stats_available_bytes", "persistentvolumeclaim", _CLAIMS, 60e9)
    tell("kube_cronjob_created", "cronjob", _JOBS, time.time() - 3 * 86400)
    tell("kube_cronjob_status_last_successful_time", "cronjob", _JOBS, time.time() - 3600)
    tell("kube_cronjob_spec_suspend", "cronjob", _JOBS, 0)
    with MetricsServer("127.0.0.1:0", registry, lambda: None) as server:
        yield server.address
