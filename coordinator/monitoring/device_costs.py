"""Sums of what devices report with their results, because Prometheus cannot scrape devices.

The metrics do not tell devices apart. Each reported number is clipped to its range, so a hostile
device can add one false observation for each of its accepted results, and no more.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from hfmds.domain.tasks import DeviceReport, EvaluationReport, SynthesisReport, UpdateReport

_COMPUTE_BUCKETS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_MEMORY_BUCKETS = tuple(2.0**power for power in range(26, 36))  # 64 MiB to 32 GiB
_PSNR_BUCKETS = (5, 8, 10, 12, 14, 16, 18, 20, 25, 30, 40, 100)
_SSIM_BUCKETS = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_MOST_SECONDS = 1e7
_HIGHEST_PSNR_DB = 100.0


class FleetMetrics:
    """Counts the reports of devices that say what a task cost them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"hfmds_coordinator_fleet_{name}", meaning, labels, registry=registry)

        def histogram(
            name: str, meaning: str, buckets: tuple[float, ...], *labels: str
        ) -> Histogram:
            return Histogram(
                f"hfmds_coordinator_fleet_{name}",
                meaning,
                labels,
                buckets=buckets,
                registry=registry,
            )

        self._reports = counter(
            "reports_total", "Accepted results whose devices reported their cost, by kind.", "kind"
        )
        self._compute = histogram(
            "compute_seconds", "Time that devices took to compute a task.", _COMPUTE_BUCKETS, "kind"
        )
        self._step = histogram(
            "step_seconds", "Mean time of a step in a device's task.", _STEP_BUCKETS, "kind"
        )
        self._cpu = counter(
            "cpu_seconds_total",
            "Processor time of devices' computations, a rough measure of their energy.",
            "kind",
        )
        self._memory = histogram(
            "peak_memory_bytes",
            "Peak memory of a device's program at the time of a result.",
            _MEMORY_BUCKETS,
        )
        self._psnr = histogram(
            "batch_psnr_db",
            "The highest PSNR in a synthetic batch to the paired or the nearest real image.",
            _PSNR_BUCKETS,
            "real",
        )
        self._ssim = histogram(
            "batch_ssim_ratio",
            "The highest SSIM in a synthetic batch to the paired or the nearest real image.",
            _SSIM_BUCKETS,
            "real",
        )
        self._withheld = counter(
            "withheld_samples_total",
            "Synthetic images that devices made and did not send, because they exceed the run's "
            "leakage limits or a class has more images than the pools take.",
        )
        for kind in ("train", "synthesise", "evaluate"):  # show 0 before the first report
            for metric in (self._reports, self._compute, self._step, self._cpu):
                metric.labels(kind)
        for real in ("paired", "nearest"):
            self._psnr.labels(real)
            self._ssim.labels(real)

    def count(self, report: UpdateReport | SynthesisReport | EvaluationReport) -> None:
        """Count an accepted result, if its device reports its cost."""
        if report.device is None:
            return
        match report:
            case UpdateReport():
                self._count("train", report.training_seconds, report.device)
            case EvaluationReport():
                self._count("evaluate", report.evaluation_seconds, report.device)
            case SynthesisReport():
                self._count("synthesise", report.synthesis_seconds, report.device)
                self._count_leakage(report, report.device)

    def _count(self, kind: str, seconds: float, device: DeviceReport) -> None:
        seconds = min(max(seconds, 0.0), _MOST_SECONDS)
        self._reports.labels(kind).inc()
        self._compute.labels(kind).observe(seconds)
        if device.steps:
            self._step.labels(kind).observe(seconds / device.steps)
        self._cpu.labels(kind).inc(device.cpu_seconds)
        if device.peak_memory_bytes:
            self._memory.observe(device.peak_memory_bytes)

    def _count_leakage(self, report: SynthesisReport, device: DeviceReport) -> None:
        self._withheld.inc(device.withheld_samples)
        highest = {"paired": report.leakage.paired_max, "nearest": report.leakage.nearest_max}
        for real, decibels in highest.items():
            self._psnr.labels(real).observe(min(max(decibels, 0.0), _HIGHEST_PSNR_DB))
        alike = {"paired": device.ssim_paired_max, "nearest": device.ssim_nearest_max}
        for real, ssim in alike.items():
            if ssim is not None:
                self._ssim.labels(real).observe(ssim)
