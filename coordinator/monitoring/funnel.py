"""The funnel: how many tasks reach each stage, and how the others end.

The database has the highest stage of each task. It is written with a change of the task: when its
device takes it, renews its lease, or hands in a result. `FunnelRecords` counts the rows for
operators. `FunnelMetrics` counts each change once, on the coordinator that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter
from sqlalchemy import Engine, Row, func, select

from coordinator.records.states import TaskState
from coordinator.records.tables import PhaseRow, RoundRow, RunRow, TaskRow
from coordinator.records.tasks import PENDING_NAMES
from hfmds.domain.administration.operations import Funnel
from hfmds.domain.tasks import FailureCause, LateReason, TaskStage
from hfmds.errors import InvalidInput, NotFound
from hfmds.storage.database import read_session

_KINDS = ("train", "synthesise", "evaluate")
_OUTCOMES = ("accepted", "failed", "dropped")
_DROPS = (
    LateReason.GOAL_REACHED,
    LateReason.DEADLINE,
    LateReason.GONE,
    LateReason.TOO_SLOW,
    LateReason.STALE,
)
"""The reasons for which a phase drops a task that it assigned."""


class FunnelRecords:
    """Counts the tasks in the database by the stages that they reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def funnels(self, run_id: str = "", round_number: int = 0) -> tuple[Funnel, ...]:
        """Return the funnel of each kind of task: of all runs, of one run, or of one round."""
        if round_number and not run_id:
            raise InvalidInput(f"round {round_number} needs a run; name one")
        tasks, phases = [], []
        if run_id:
            tasks.append(TaskRow.run_id == run_id)
            phases.append(PhaseRow.run_id == run_id)
        if round_number:
            tasks.append(TaskRow.round_number == round_number)
            phases.append(PhaseRow.round_number == round_number)
        columns = (
            TaskRow.kind,
            TaskRow.state,
            TaskRow.stage,
            TaskRow.over_reason,
            TaskRow.failure_cause,
            TaskRow.refusal,
        )
        counted = select(func.count().label("tasks"), *columns).where(*tasks).group_by(*columns)
        present = select(
            PhaseRow.kind, func.sum(PhaseRow.devices_here), func.sum(PhaseRow.devices_eligible)
        )
        funnels: dict[str, Funnel] = {}
        with read_session(self._engine) as session:
            if run_id and session.get(RunRow, run_id) is None:
                raise NotFound(f"there is no run {run_id!r}; `hfmds run list` shows the runs")
            if round_number and session.get(RoundRow, (run_id, round_number)) is None:
                raise NotFound(f"run {run_id!r} has not begun round {round_number}")
            by_kind = session.execute(present.where(*phases).group_by(PhaseRow.kind))
            for kind, devices_here, devices_eligible in by_kind:
                funnels[kind] = Funnel(kind, here=devices_here, eligible=devices_eligible)
            for row in session.execute(counted):
                _add(funnels.setdefault(row.kind, Funnel(row.kind)), row)
        return tuple(funnels[kind] for kind in sorted(funnels))

    def stages(self) -> Mapping[TaskStage, int]:
        """Count the pending tasks in each stage."""
        pending = (
            select(TaskRow.stage, func.count())
            .where(TaskRow.state.in_(PENDING_NAMES))
            .group_by(TaskRow.stage)
        )
        with read_session(self._engine) as session:
            counts = {row[0]: row[1] for row in session.execute(pending)}
        return {stage: counts.get(int(stage), 0) for stage in TaskStage}


def _add(funnel: Funnel, row: Row[int, str, str, int, str, str, str]) -> None:
    """Add the tasks of a row, which are alike, to their funnel."""
    funnel.assigned += row.tasks
    for reached in list(TaskStage)[1 : row.stage + 1]:
        name = reached.name.lower()
        setattr(funnel, name, getattr(funnel, name) + row.tasks)
    if row.refusal:
        _count(funnel.refused, row.refusal, row.tasks)
    match TaskState[row.state]:
        case TaskState.ACCEPTED:
            funnel.accepted += row.tasks
        case TaskState.ASSIGNED | TaskState.LEASED:
            funnel.pending += row.tasks
        case TaskState.OVER if row.stage == TaskStage.ASSIGNED:
            funnel.unneeded += row.tasks
        case TaskState.OVER if row.over_reason != LateReason.FAILED.name:
            _count(funnel.late, LateReason[row.over_reason].value, row.tasks)
        case _:
            _count(funnel.failed, FailureCause[row.failure_cause].value, row.tasks)


def _count(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count


class FunnelMetrics:
    """Counts tasks by the stages that they reach and by how they end. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
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
        for kind in _KINDS:  # show 0 before the first task
            for stage in (*(stage.name.lower() for stage in TaskStage), "accepted"):
                self._stages.labels(kind, stage)
            for outcome in _OUTCOMES:
                self._ended.labels(kind, outcome)
            for cause in FailureCause:
                self._failed.labels(kind, cause.value)
            for reason in _DROPS:
                self._dropped.labels(kind, reason.value)

    def assigned(self, kind: str, tasks: int) -> None:
        """Count tasks that a phase assigns."""
        self._stages.labels(kind, "assigned").inc(tasks)

    def reached(self, kind: str, before: TaskStage, stage: TaskStage) -> None:
        """Count the stages that a task has passed since the stage `before`."""
        for passed in range(before + 1, stage + 1):
            self._stages.labels(kind, TaskStage(passed).name.lower()).inc()

    def accepted(self, kind: str, before: TaskStage) -> None:
        """Count a task whose result is accepted, in all stages that are missing."""
        self.reached(kind, before, TaskStage.UPLOADED)
        self._stages.labels(kind, "accepted").inc()
        self._ended.labels(kind, "accepted").inc()

    def failed(self, kind: str, cause: FailureCause) -> None:
        """Count a task that its device gave up."""
        self._ended.labels(kind, "failed").inc()
        self._failed.labels(kind, cause.value).inc()

    def dropped(self, kind: str, reasons: Iterable[LateReason]) -> None:
        """Count the tasks that a round drops, by the reason of each."""
        for reason in reasons:
            if reason in _DROPS:
                self._ended.labels(kind, "dropped").inc()
                self._dropped.labels(kind, reason.value).inc()
