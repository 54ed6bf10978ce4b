"""What the coordinator exports to Prometheus.

Series labelled by run exist for the runs that are active and for the last few that ended, so their
number stays bounded however long the process lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hfmds.algorithm.types import LeakageSummary, Traffic
from hfmds.wire.types import Device, DeviceState, Round, Run, RunState, TaskStage

_ENDED_RUNS_KEPT = 20
_ROUND_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    """The coordinator's metrics on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended_runs: deque[str] = deque()

        def by_run(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"hfmds_coordinator_{name}", meaning, ("run", *labels), registry=registry)

        self._round = by_run("round_number", "The last completed round of the run.")
        self._accuracy = by_run("accuracy_ratio", "Fraction of the held-out set classified right.")
        self._loss = by_run("held_out_loss", "Mean cross-entropy on the held-out set, in nats.")
        self._device_accuracy = by_run(
            "device_accuracy_ratio", "Fraction of devices' own data classified right, when asked."
        )
        self._training_loss = by_run(
            "training_loss", "Mean over devices of the last local epoch's loss, in nats."
        )
        self._cohort = by_run("cohort_devices", "Devices whose updates made the last round.")
        self._pool_samples = by_run("pool_samples", "Synthetic images in the pool in use.")
        self._leakage = by_run(
            "pool_psnr_db",
            "PSNR of the pool in use to real images, as measured on the devices, in dB.",
            "real",
            "statistic",
        )
        self._by_run = (
            self._round,
            self._accuracy,
            self._loss,
            self._device_accuracy,
            self._training_loss,
            self._cohort,
            self._pool_samples,
        )
        self._round_seconds = Histogram(
            "hfmds_coordinator_round_duration_seconds",
            "Time from opening a round to its durable result.",
            buckets=_ROUND_SECONDS,
            registry=registry,
        )
        self._tasks = Counter(
            "hfmds_coordinator_tasks_total",
            "Tasks that came to an end, by what was asked and how it ended.",
            ("kind", "outcome"),
            registry=registry,
        )
        self._refused = Counter(
            "hfmds_coordinator_updates_refused_total",
            "Updates that devices handed in and that were refused, by what is wrong with them.",
            ("reason",),
            registry=registry,
        )
        self._late = Counter(
            "hfmds_coordinator_late_total",
            "Answers to devices that their task is over, by why it is.",
            ("reason",),
            registry=registry,
        )
        self._received = Counter(
            "hfmds_coordinator_device_received_bytes_total",
            "Payload bytes that devices received for accepted tasks.",
            registry=registry,
        )
        self._sent = Counter(
            "hfmds_coordinator_device_sent_bytes_total",
            "Payload bytes that devices sent for accepted tasks.",
            registry=registry,
        )
        self._leader = Gauge(
            "hfmds_coordinator_leader",
            "1 for the coordinator that drives the runs, 0 for one that stands by.",
            registry=registry,
        )
        self._leadership_changes = Counter(
            "hfmds_coordinator_leadership_changes_total",
            "How often this coordinator began or ceased to drive the runs.",
            registry=registry,
        )
        self._registry = registry

    def leads(self, leads: bool) -> None:
        """Show whether this coordinator drives the runs."""
        self._leader.set(leads)
        self._leadership_changes.inc()

    def count(
        self, devices: Callable[[], Sequence[Device]], runs: Callable[[], Sequence[Run]]
    ) -> None:
        """Count devices and runs anew at every scrape."""
        self._registry.register(_Census(devices, runs))

    def watch(
        self, drained: Callable[[], bool], stages: Callable[[], Mapping[TaskStage, int]]
    ) -> None:
        """Look at these anew at every scrape."""
        self._registry.register(_Oversight(drained, stages))

    def round_completed(self, run_id: str, completed: Round) -> None:
        """Show a run's newest round."""
        self._round_seconds.observe(completed.duration_seconds)
        self.show_round(run_id, completed)

    def show_round(self, run_id: str, completed: Round) -> None:
        """Show where a run stands, e.g. after a restart."""
        self._round.labels(run_id).set(completed.number)
        self._training_loss.labels(run_id).set(completed.training_loss)
        self._cohort.labels(run_id).set(len(completed.device_ids))
        if completed.evaluation:
            self._accuracy.labels(run_id).set(completed.evaluation.accuracy)
            self._loss.labels(run_id).set(completed.evaluation.loss)
        if completed.device_evaluation:
            self._device_accuracy.labels(run_id).set(completed.device_evaluation.accuracy)
        if completed.pool:
            self._pool_samples.labels(run_id).set(completed.pool.samples)
            self._show_leakage(run_id, completed.pool.leakage)

    def run_ended(self, run_id: str) -> None:
        """Keep the series of a run that ended for a while."""
        self._ended_runs.append(run_id)
        while len(self._ended_runs) > _ENDED_RUNS_KEPT:
            forgotten = self._ended_runs.popleft()
            for gauge in (*self._by_run, self._leakage):
                gauge.remove_by_labels({"run": forgotten})

    def task_ended(self, kind: str, outcome: str) -> None:
        """Count a task."""
        self._tasks.labels(kind, outcome).inc()

    def late(self, reason: str) -> None:
        """Count a device that was told that its task is over."""
        self._late.labels(reason).inc()

    def update_refused(self, reason: str) -> None:
        """Count an update that was refused."""
        self._refused.labels(reason).inc()

    def moved(self, traffic: Traffic) -> None:
        """Count a device's bytes."""
        self._received.inc(traffic.received_bytes)
        self._sent.inc(traffic.sent_bytes)

    def _show_leakage(self, run_id: str, leakage: LeakageSummary) -> None:
        for real in ("paired", "nearest"):
            for statistic in ("mean", "p99", "max"):
                value = getattr(leakage, f"{real}_{statistic}")
                self._leakage.labels(run_id, real, statistic).set(value)


class _Census(Collector):
    """Devices and runs by state, as they are at the time of the scrape."""

    def __init__(
        self, devices: Callable[[], Sequence[Device]], runs: Callable[[], Sequence[Run]]
    ) -> None:
        self._devices = devices
        self._runs = runs

    def describe(self) -> Iterable[Metric]:
        return self._families([], [])

    def collect(self) -> Iterable[Metric]:
        return self._families(self._devices(), self._runs())

    def _families(self, devices: Sequence[Device], runs: Sequence[Run]) -> Iterable[Metric]:
        by_device_state = GaugeMetricFamily(
            "hfmds_coordinator_devices",
            "Devices that have ever checked in, by what they are doing.",
            labels=["state"],
        )
        for device_state in DeviceState:
            count = sum(device.state is device_state for device in devices)
            by_device_state.add_metric([device_state.value], count)
        by_run_state = GaugeMetricFamily(
            "hfmds_coordinator_runs", "Runs by state.", labels=["state"]
        )
        for run_state in RunState:
            count = sum(run.state is run_state for run in runs)
            by_run_state.add_metric([run_state.value], count)
        return by_device_state, by_run_state


class _Oversight(Collector):
    """The drain, and the tasks under way by stage, as they are at the time of the scrape."""

    def __init__(
        self, drained: Callable[[], bool], stages: Callable[[], Mapping[TaskStage, int]]
    ) -> None:
        self._drained = drained
        self._stages = stages

    def describe(self) -> Iterable[Metric]:
        return self._families(False, {})

    def collect(self) -> Iterable[Metric]:
        return self._families(self._drained(), self._stages())

    def _families(self, drained: bool, stages: Mapping[TaskStage, int]) -> Iterable[Metric]:
        by_stage = GaugeMetricFamily(
            "hfmds_coordinator_tasks_pending",
            "Tasks whose results are wanted, by how far their devices are.",
            labels=["stage"],
        )
        for stage in TaskStage:
            by_stage.add_metric([stage.name.lower()], stages.get(stage, 0))
        yield by_stage
        yield GaugeMetricFamily(
            "hfmds_coordinator_drained",
            "1 while the coordinator hands out no new work by an operator's wish.",
            value=int(drained),
        )
