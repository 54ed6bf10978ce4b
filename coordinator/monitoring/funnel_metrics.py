"""How far tasks come, as counters: each task counts once in every stage that it has reached.

Of what a device is known to have reached, only the highest stage of its task is remembered, and of
a bounded number of tasks. One that is forgotten, or that moved here from another coordinator, is
counted again when its result is accepted: a funnel is read as ratios, which bear that.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

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
"""Why a phase does without a task that it had assigned."""

_ACCEPTED = "accepted"
_REMEMBERED_TASKS = 100_000


class FunnelMetrics:
    """Counts tasks by the stages they reach and by how they end. Thread-safe."""

    def __init__(
        self, registry: CollectorRegistry, remembered_tasks: int = _REMEMBERED_TASKS
    ) -> None:
        self._stages = Counter(
            "hfmds_coordinator_funnel_tasks_total",
            "Tasks by kind and by the stages they have reached: assigned, taken, downloaded, "
            "computed, uploaded, accepted.",
            ("kind", "stage"),
            registry=registry,
        )
        self._ended = Counter(
            "hfmds_coordinator_tasks_total",
            "Tasks that came to an end, by what was asked and how it ended.",
            ("kind", "outcome"),
            registry=registry,
        )
        self._failed = Counter(
            "hfmds_coordinator_tasks_failed_total",
            "Tasks that devices gave up, by what went wrong.",
            ("kind", "cause"),
            registry=registry,
        )
        self._dropped = Counter(
            "hfmds_coordinator_tasks_dropped_total",
            "Tasks that a round did without, by why (goal-reached: it had enough results).",
            ("kind", "reason"),
            registry=registry,
        )
        self._lock = threading.Lock()
        self._remembered_tasks = remembered_tasks
        self._reached: OrderedDict[str, tuple[str, TaskStage]] = OrderedDict()  # by task
        # To find a series by its labels takes longer than to count in it. All are shown as 0
        # before the first one.
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
        """So many devices were asked."""
        self._at_stage[kind][TaskStage.ASSIGNED].inc(tasks)

    def taken(self, kind: str, task_id: str) -> None:
        """A device was told of its task."""
        with self._lock:
            known = task_id in self._reached
            if not known:
                self._remember(task_id, kind, TaskStage.TAKEN)
        if not known:
            self._at_stage[kind][TaskStage.TAKEN].inc()

    def reached(self, task_id: str, stage: TaskStage) -> None:
        """A device is as far as this with a task that it took here, or farther."""
        with self._lock:
            if task_id not in self._reached:
                return
            kind, before = self._reached[task_id]
            if stage > before:
                self._remember(task_id, kind, stage)
        self._count(kind, before, stage)

    def accepted(self, kind: str, task_id: str) -> None:
        """Its result was accepted: it has all stages behind it."""
        with self._lock:
            _, before = self._reached.pop(task_id, (kind, TaskStage.ASSIGNED))
        self._count(kind, before, TaskStage.UPLOADED)
        for counter in self._accepted[kind]:
            counter.inc()

    def failed(self, kind: str, task_id: str, cause: FailureCause) -> None:
        """Its device gave it up."""
        with self._lock:
            self._reached.pop(task_id, None)
        self._ended.labels(kind, "failed").inc()
        self._failed.labels(kind, cause.value).inc()

    def dropped(self, kind: str, reasons: Iterable[LateReason]) -> None:
        """A round does without these tasks; one reason for each."""
        for reason in reasons:
            if reason in DROPS:
                self._ended.labels(kind, "dropped").inc()
                self._dropped.labels(kind, reason.value).inc()

    def _remember(self, task_id: str, kind: str, stage: TaskStage) -> None:
        self._reached[task_id] = kind, stage
        if len(self._reached) > self._remembered_tasks:
            self._reached.popitem(last=False)

    def _count(self, kind: str, before: TaskStage, stage: TaskStage) -> None:
        for counter in self._at_stage[kind][before + 1 : stage + 1]:
            counter.inc()
