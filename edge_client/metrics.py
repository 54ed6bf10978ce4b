"""What a device tells Prometheus about its work."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hfmds.algorithm.types import LeakageSummary

# From a second on a workstation to an hour on a small board.
_COMPUTE_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class EdgeMetrics:
    """The metrics of one device; its id is not a label, the scraper knows whom it asked."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tasks = Counter(
            "hfmds_edge_tasks_total",
            "Tasks by kind (train, synthesise, evaluate; unknown: of a later version) and outcome "
            "(accepted, late, failed; left: the device had to rest).",
            ("kind", "outcome"),
            registry=registry,
        )
        self.compute = Histogram(
            "hfmds_edge_compute_seconds",
            "Time the engine took for a task, by kind (train, synthesise, evaluate).",
            ("kind",),
            buckets=_COMPUTE_BUCKETS,
            registry=registry,
        )
        self.received_bytes = Counter(
            "hfmds_edge_received_bytes_total",
            "Bytes of weights, plans and shards received; what was in the cache is not counted.",
            registry=registry,
        )
        self.sent_bytes = Counter(
            "hfmds_edge_sent_bytes_total",
            "Bytes of updates and synthetic batches sent.",
            registry=registry,
        )
        self.psnr_paired = Gauge(
            "hfmds_edge_psnr_paired_db",
            "PSNR of the last synthetic batch to the real images it was paired with, in dB "
            "(mean, p99, max); higher means more leaked.",
            ("statistic",),
            registry=registry,
        )
        self.withheld_samples = Counter(
            "hfmds_edge_withheld_samples_total",
            "Synthetic images that were not sent, as they are over the run's limits of leakage or "
            "more of a class than its pools take.",
            registry=registry,
        )
        # Registered while there is a value: a 0 or NaN would spoil every average over a fleet.
        self._synthetic_accuracy = Gauge(
            "hfmds_edge_synthetic_accuracy_ratio",
            "Fraction of the last synthetic batch that the global model labels as intended; "
            "absent if that was not measured.",
            registry=None,
        )
        self._registry = registry
        self._accuracy_is_shown = False
        self.training_loss = Gauge(
            "hfmds_edge_training_loss",
            "Mean loss over the last local epoch of the last training.",
            registry=registry,
        )
        self.round = Gauge(
            "hfmds_edge_round", "Round of the last task this device took.", registry=registry
        )
        self.peer_up = Gauge(
            "hfmds_edge_peer_up",
            "Whether the peer (coordinator, synthesis store) answered the last call.",
            ("peer",),
            registry=registry,
        )

    def observe_peer(self, name: str, up: bool) -> None:
        """Show whether a peer answers."""
        self.peer_up.labels(name).set(up)

    def observe_batch(self, leakage: LeakageSummary, accuracy: float | None) -> None:
        """Show what was measured over the last batch."""
        self._show_accuracy(accuracy)
        self.psnr_paired.labels("mean").set(leakage.paired_mean)
        self.psnr_paired.labels("p99").set(leakage.paired_p99)
        self.psnr_paired.labels("max").set(leakage.paired_max)

    def _show_accuracy(self, accuracy: float | None) -> None:
        if accuracy is not None:
            self._synthetic_accuracy.set(accuracy)
        measured = accuracy is not None
        if measured and not self._accuracy_is_shown:
            self._registry.register(self._synthetic_accuracy)
        elif self._accuracy_is_shown and not measured:
            self._registry.unregister(self._synthetic_accuracy)
        self._accuracy_is_shown = measured
