"""The metrics that the coordinator exports to Prometheus; docs/metrics.md lists them.

Series with the label `run` exist for the active runs and for the last few that ended. So their
number is bounded for as long as the process lives.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coordinator.monitoring.device_costs import FleetMetrics
from coordinator.monitoring.funnel import FunnelMetrics
from hfmds.domain.learning import LeakageSummary, Traffic
from hfmds.domain.pool_policy import NO_LIMIT, PSNR_LIMITS, PoolPolicy
from hfmds.domain.runs import Phase, Round
from hfmds.domain.tasks import LateReason
from hfmds.errors import TooLate

_ENDED_RUNS_KEPT = 20
_ROUND_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_PHASE_SECONDS = (0.01, 0.05, *_ROUND_SECONDS)
_STALENESS_ROUNDS = (0, 1, 2, 3, 5, 8, 13, 20, 50)
_CLOSED_BY = (LateReason.GOAL_REACHED, LateReason.DEADLINE, LateReason.GONE)
_REFUSALS = ("too large", "malformed", "not finite", "unusable")


class Metrics:
    """The coordinator's metrics on one registry."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.time) -> None:
        self._ended_runs: deque[str] = deque()
        self._clock = clock
        self._best: dict[str, float] = {}  # accuracy by run
        self.funnel = FunnelMetrics(registry)
        self.fleet = FleetMetrics(registry)

        def by_run(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"hfmds_coordinator_{name}", meaning, ("run", *labels), registry=registry)

        self._round = by_run("round_number", "The last completed round of the run.")
        self._accuracy = by_run("accuracy_ratio", "Accuracy on the held-out set.")
        self._best_accuracy = by_run(
            "best_accuracy_ratio",
            "The best accuracy of all rounds of the run: on the held-out set, or on devices' own "
            "data if the run has no such set.",
        )
        self._loss = by_run("held_out_loss", "Mean cross-entropy on the held-out set, in nats.")
        self._device_accuracy = by_run(
            "device_accuracy_ratio", "Accuracy on devices' own data, if the run measures it."
        )
        self._device_loss = by_run(
            "device_loss",
            "Mean cross-entropy on devices' own data, in nats, if the run measures it.",
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
        self._leakage_limits = by_run(
            "pool_psnr_limit_db",
            "The run's limit for a sample (max), or for a pool, which halts above it (p99); only "
            "of runs with limits.",
            "real",
            "statistic",
        )
        self._by_run = (
            self._round,
            self._accuracy,
            self._best_accuracy,
            self._loss,
            self._device_accuracy,
            self._device_loss,
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
        self._progressed_at = by_run(
            "run_progress_timestamp_seconds",
            "Unix time of the run's last progress; only of runs that this coordinator drives.",
        )
        self._phase_seconds = Histogram(
            "hfmds_coordinator_phase_duration_seconds",
            "Time that a round spent in a phase, with pauses. Aggregating is the time of the mean.",
            ("phase",),
            buckets=_PHASE_SECONDS,
            registry=registry,
        )
        self._phases_closed = Counter(
            "hfmds_coordinator_phases_closed_total",
            "Closed phases by kind and reason: all results are in, the deadline has passed, or no "
            "device is left that could send a result.",
            ("kind", "reason"),
            registry=registry,
        )
        self._staleness = Histogram(
            "hfmds_coordinator_update_staleness_rounds",
            "Age in rounds of the model that an update began with, in asynchronous rounds.",
            buckets=_STALENESS_ROUNDS,
            registry=registry,
        )
        self._refused = Counter(
            "hfmds_coordinator_updates_refused_total",
            "Updates that the coordinator refused, by reason.",
            ("reason",),
            registry=registry,
        )
        self._late = Counter(
            "hfmds_coordinator_late_total",
            "Answers to devices that their task is over, by reason.",
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
            "1 for the coordinator that drives the runs, 0 for a standby.",
            registry=registry,
        )
        self._leadership_changes = Counter(
            "hfmds_coordinator_leadership_changes_total",
            "How often this coordinator began or stopped driving the runs.",
            registry=registry,
        )
        self._show_zeros()

    def _show_zeros(self) -> None:
        """Show 0 for events that have not happened: a rate over an absent series is nothing."""
        for phase in Phase:
            self._phase_seconds.labels(phase.name.lower())
        for kind in ("train", "synthesise", "evaluate"):
            for reason in _CLOSED_BY:
                self._phases_closed.labels(kind, reason.value)
        for late in LateReason:
            self._late.labels(late.value)
        for refusal in _REFUSALS:
            self._refused.labels(refusal)

    def set_leading(self, leads: bool) -> None:
        """Show whether this coordinator drives the runs."""
        self._leader.set(leads)
        self._leadership_changes.inc()

    def show_limits(self, run_id: str, policy: PoolPolicy) -> None:
        """Show the leakage limits of a run."""
        for name in PSNR_LIMITS:
            *_, real, statistic, _ = name.split("_")  # "halt_psnr_paired_p99_db"
            if (limit := getattr(policy, name)) < NO_LIMIT[name]:
                self._leakage_limits.labels(run_id, real, statistic).set(limit)

    def round_completed(self, run_id: str, completed: Round) -> None:
        """Show a run's newest round."""
        self._round_seconds.observe(completed.duration_seconds)
        self._show_round(run_id, completed)

    def show_run(self, run_id: str, last: Round, best: Round) -> None:
        """Show a run that another coordinator drove: its last round and its best one."""
        self._show_best(run_id, best)
        self._show_round(run_id, last)

    def _show_round(self, run_id: str, completed: Round) -> None:
        self._round.labels(run_id).set(completed.number)
        self._training_loss.labels(run_id).set(completed.training_loss)
        self._cohort.labels(run_id).set(len(completed.device_ids))
        if completed.evaluation:
            self._accuracy.labels(run_id).set(completed.evaluation.accuracy)
            self._loss.labels(run_id).set(completed.evaluation.loss)
        if completed.device_evaluation:
            self._device_accuracy.labels(run_id).set(completed.device_evaluation.accuracy)
            self._device_loss.labels(run_id).set(completed.device_evaluation.loss)
        self._show_best(run_id, completed)
        if completed.pool:
            self._pool_samples.labels(run_id).set(completed.pool.samples)
            self._show_leakage(run_id, completed.pool.leakage)

    def run_ended(self, run_id: str) -> None:
        """Keep the series of a run that ended for a while."""
        self._ended_runs.append(run_id)
        while len(self._ended_runs) > _ENDED_RUNS_KEPT:
            self._forget(self._ended_runs.popleft())

    def run_progressed(self, run_id: str) -> None:
        """Show that a run made progress: a result came, or a phase began."""
        self._progressed_at.labels(run_id).set(self._clock())

    def run_left(self, run_id: str, *, to_another: bool = False) -> None:
        """Stop showing the progress of a run that this coordinator no longer drives.

        `to_another` also removes its other series, because another coordinator shows them.
        """
        if to_another:
            self._forget(run_id)
        self._progressed_at.remove_by_labels({"run": run_id})

    def phase_ended(self, phase: Phase, seconds: float) -> None:
        """Observe the time that a round spent in a phase."""
        self._phase_seconds.labels(phase.name.lower()).observe(seconds)

    def phase_closed(self, kind: str, reason: LateReason) -> None:
        """Count a phase that closed."""
        self._phases_closed.labels(kind, reason.value).inc()

    def updates_counted(self, staleness: Iterable[int]) -> None:
        """Observe by how many rounds each update of an asynchronous round is late."""
        for rounds in staleness:
            self._staleness.observe(rounds)

    def late(self, reason: str) -> None:
        """Count an answer to a device that its task is over."""
        self._late.labels(reason).inc()

    @contextmanager
    def counting_late(self) -> Iterator[None]:
        """Count an answer inside that tells a device that its task is over."""
        try:
            yield
        except TooLate as error:
            self.late(error.reason)
            raise

    def update_refused(self, reason: str) -> None:
        """Count an update that was refused."""
        self._refused.labels(reason).inc()

    def moved(self, traffic: Traffic) -> None:
        """Count the bytes of a device's task."""
        self._received.inc(traffic.received_bytes)
        self._sent.inc(traffic.sent_bytes)

    def _forget(self, run_id: str) -> None:
        self._best.pop(run_id, None)
        for gauge in (*self._by_run, self._leakage, self._leakage_limits):
            gauge.remove_by_labels({"run": run_id})

    def _show_best(self, run_id: str, completed: Round) -> None:
        if completed.accuracy is not None:
            self._best[run_id] = max(completed.accuracy, self._best.get(run_id, 0.0))
            self._best_accuracy.labels(run_id).set(self._best[run_id])

    def _show_leakage(self, run_id: str, leakage: LeakageSummary) -> None:
        for real in ("paired", "nearest"):
            for statistic in ("mean", "p99", "max"):
                value = getattr(leakage, f"{real}_{statistic}")
                self._leakage.labels(run_id, real, statistic).set(value)
