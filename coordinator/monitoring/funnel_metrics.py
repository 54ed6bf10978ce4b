"""The funnel as counters: each task counts once in each stage that it has reached.

The process remembers the highest stage of a bounded number of tasks. A task that it forgot, or that
another coordinator handed out, counts again when its result is accepted. Operators read a funnel as
ratios, which hardly change by that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from cachetools import LRUCache
from prometheus_client import CollectorRegistry, Counter

from hfmds.domain.tasks import FailureCause, LateReason, TaskStage

KINDS = ("train", "synthesise", "evaluate")
OUTCOMES = ("accepted", "failed", "dropped")
DROPS = (
    LateReason.GOAL_REACHED,
    LateReason.DEADLINE,
    LateReason.GONE,
    LateReason.TOO_SLOW,
    LateReason.STALE,
)
"""The reasons for which a phase drops a task that it assigned."""

_ACCEPTED = "accepted"
_REMEMBERED_TASKS = 100_000


class FunnelMetrics:
    """Counts tasks by the stages that they reach and by how they end. Thread-safe."""

    def __init__(
        self, registry: CollectorRegistry, remembered_tasks: int = _REMEMBERED_TASKS
    ) -> None:
        self._stages = Counter(
            "hfmds_coordinator_funnel_tasks_total",
            "Tasks by kind and by the stages that they have reached: assigned, taken, downloaded, "
            "computed, uploaded, accepted.",
            ("kind", "stage"),
            registry=registry,
        )
        self._ended = Counter(
            "hfmds_coordinator_tasks_total",
            "Tasks that ended, by kind and outcome.",
            ("kind", "outcome"),
            registry=registry,
        )
        self._failed = Counter(
            "hfmds_coordinator_tasks_failed_total",
            "Tasks that devices gave up, by kind and cause.",
            ("kind", "cause"),
            registry=registry,
        )
        self._dropped = Counter(
            "hfmds_coordinator_tasks_dropped_total",
            "Tasks that a round dropped, by reason (goal-reached: it had enough results).",
            ("kind", "reason"),
            registry=registry,
        )
        self._lock = threading.Lock()
        self._reached = LRUCache[str, tuple[str, TaskStage]](remembered_tasks)  # by task id
        # Looking a series up by its labels takes longer than counting. And a series that exists
        # shows 0 before the first task.
        self._at_stage = {
            kind: [self._stages.labels(kind, stage.name.lower()) for stage in TaskStage]
            for kind in KINDS
        }
        self._accepted = {
            kind: (self._stages.labels(kind, _ACCEPTED), self._ended.labels(kind, _ACCEPTED))
            for kind in KINDS
        }
        for kind in KINDS:
            for outcome in OUTCOMES:
                self._ended.labels(kind, outcome)
            for cause in FailureCause:
                self._failed.labels(kind, cause.value)
            for reason in DROPS:
                self._dropped.labels(kind, reason.value)

    def assigned(self, kind: str, tasks: int) -> None:
        """Count tasks that a phase assigns."""
        self._at_stage[kind][TaskStage.ASSIGNED].inc(tasks)

    def taken(self, kind: str, task_id: str) -> None:
        """Count a task that a device takes."""
        with self._lock:
            known = task_id in self._reached
            if not known:
                self._reached[task_id] = kind, TaskStage.TAKEN
        if not known:
            self._at_stage[kind][TaskStage.TAKEN].inc()

    def reached(self, task_id: str, stage: TaskStage) -> None:
        """Count a stage that a task has reached, if its device took it here."""
        with self._lock:
            if task_id not in self._reached:
                return
            kind, before = self._reached[task_id]
            if stage > before:
                self._reached[task_id] = kind, stage
        self._count(kind, before, stage)

    def accepted(self, kind: str, task_id: str) -> None:
        """Count a task whose result is accepted, in all stages that are missing."""
        with self._lock:
            _, before = self._reached.pop(task_id, (kind, TaskStage.ASSIGNED))
        self._count(kind, before, TaskStage.UPLOADED)
        for counter in self._accepted[kind]:
            counter.inc()

    def failed(self, kind: str, task_id: str, cause: FailureCause) -> None:
        """Count a task that its device gave up."""
        with self._lock:
            self._reached.pop(task_id, None)
        self._ended.labels(kind, "failed").inc()
        self._failed.labels(kind, cause.value).inc()

    def dropped(self, kind: str, reasons: Iterable[LateReason]) -> None:
        """Count the tasks that a round drops, by the reason of each."""
        for reason in reasons:
            if reason in DROPS:
                self._ended.labels(kind, "dropped").inc()
                self._dropped.labels(kind, reason.value).inc()

    def _count(self, kind: str, before: TaskStage, stage: TaskStage) -> None:
        for counter in self._at_stage[kind][before + 1 : stage + 1]:
            counter.inc()
