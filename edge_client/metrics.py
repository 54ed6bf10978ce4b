"""The metrics of a device."""

from __future__ import annotations

import dataclasses

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hfmds.domain.learning import LeakageSummary

# From a second on a workstation to an hour on a small board.
_COMPUTE_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

KINDS = ("train", "synthesise", "evaluate")


class EdgeMetrics:
    """The metrics of one device. Its id is no label: the scraper knows its target."""

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
        self.step = Histogram(
            "hfmds_edge_step_seconds",
            "Time of one step of the engine, by kind (train, synthesise, evaluate).",
            ("kind",),
            buckets=_STEP_BUCKETS,
            registry=registry,
        )
        self.cpu = Counter(
            "hfmds_edge_cpu_seconds_total",
            "Processor time of computations, over all threads, by kind (train, synthesise, "
            "evaluate): what they cost in energy, roughly.",
            ("kind",),
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
        self.batch_psnr = Gauge(
            "hfmds_edge_batch_psnr_db",
            "PSNR of the last synthetic batch that was sent to the paired or the nearest real "
            "image, as mean, p99 or max; higher means more leaked.",
            ("real", "statistic"),
            registry=registry,
        )
        self.batch_ssim = Gauge(
            "hfmds_edge_batch_ssim_ratio",
            "SSIM of the last synthetic batch that was sent to the paired or the nearest real "
            "image, as mean, p99 or max; higher means more leaked.",
            ("real", "statistic"),
            registry=registry,
        )
        self.withheld_samples = Counter(
            "hfmds_edge_withheld_samples_total",
            "Synthetic images that were not sent, as they are over the run's limits of leakage or "
            "more of a class than its pools take.",
            registry=registry,
        )
        # Registered only with a value, because 0 or NaN would spoil averages over a fleet.
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
        for kind in KINDS:  # shown as 0 from the start
            self.cpu.labels(kind)
            for outcome in ("accepted", "late", "failed", "left"):
                self.tasks.labels(kind, outcome)
        self.tasks.labels("unknown", "failed")

    def observe_peer(self, name: str, up: bool) -> None:
        """Show whether a peer answers."""
        self.peer_up.labels(name).set(up)

    def observe_cost(self, kind: str, seconds: float, cpu_seconds: float) -> None:
        """Count the cost of a task."""
        self.compute.labels(kind).observe(seconds)
        self.cpu.labels(kind).inc(cpu_seconds)

    def observe_batch(
        self, psnr: LeakageSummary, ssim: LeakageSummary, accuracy: float | None
    ) -> None:
        """Show the measurements of the last batch."""
        self._show_accuracy(accuracy)
        for gauge, measured in ((self.batch_psnr, psnr), (self.batch_ssim, ssim)):
            for name, value in dataclasses.asdict(measured).items():
                real, statistic = name.split("_")  # "paired_mean"
                gauge.labels(real, statistic).set(value)

    def _show_accuracy(self, accuracy: float | None) -> None:
        if accuracy is not None:
            self._synthetic_accuracy.set(accuracy)
        measured = accuracy is not None
        if measured and not self._accuracy_is_shown:
            self._registry.register(self._synthetic_accuracy)
        elif self._accuracy_is_shown and not measured:
            self._registry.unregister(self._synthetic_accuracy)
        self._accuracy_is_shown = measured
