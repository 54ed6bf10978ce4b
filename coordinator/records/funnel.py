"""The stages that tasks reach, as devices report them, and the funnel that operators see.

A stage is not worth its own commit. The coordinator notes it in memory and writes it with
others within a second. A `kill -9` may lose that second; only these counts depend on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from sqlalchemy import Engine, bindparam, func, select, update

from coordinator.records.states import TaskState
from coordinator.records.tables import PhaseRow, RoundRow, RunRow, TaskRow
from coordinator.records.tasks import PENDING_NAMES
from hfmds.domain.administration.operations import Funnel
from hfmds.domain.tasks import FailureCause, LateReason, TaskStage
from hfmds.errors import InvalidInput, NotFound, Unavailable
from hfmds.storage.database import changing, reading

log = logging.getLogger(__name__)

_WRITE_AFTER_SECONDS = 1.0
_ADVANCE = (
    update(TaskRow)
    .where(TaskRow.task_id == bindparam("of_task"), TaskRow.stage < bindparam("reached"))
    .values(stage=bindparam("reached"))
)


class StageNotes:
    """Notes the stages of tasks and writes them within a second. Thread-safe."""

    def __init__(
        self, engine: Engine, count: Callable[[str, TaskStage], None] = lambda task_id, stage: None
    ) -> None:
        """`count` gets each stage at once, also one that the task has reached before."""
        self._engine = engine
        self._count = count
        self._lock = threading.Lock()
        self._noted: dict[str, TaskStage] = {}
        self._timer: threading.Timer | None = None

    def note(self, task_id: str, stage: TaskStage) -> None:
        """Note that a task has reached a stage, or a later one."""
        self._count(task_id, stage)
        with self._lock:
            self._noted[task_id] = max(stage, self._noted.get(task_id, stage))
            if self._timer is None:
                self._timer = threading.Timer(_WRITE_AFTER_SECONDS, self.write)
                self._timer.daemon = True
                self._timer.start()

    def accepted(self, task_id: str) -> None:
        """Drop the note of a task whose result counts: the acceptance wrote the last stage."""
        with self._lock:
            self._noted.pop(task_id, None)

    def write(self) -> None:
        """Write the notes. If the database is away, this drops them and logs a warning."""
        with self._lock:
            noted, self._noted = self._noted, {}
            self._stop_timer()
        if not noted:
            return
        try:
            with changing(self._engine) as connection:
                rows = [
                    {"of_task": task_id, "reached": int(stage)}
                    for task_id, stage in sorted(noted.items())
                ]
                connection.execute(_ADVANCE, rows)
        except Unavailable as error:
            log.warning("the stages of %d tasks were not written: %s", len(noted), error)

    def close(self) -> None:
        """Stop the timer."""
        with self._lock:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


class FunnelRecords:
    """Counts tasks by the stages that they reached."""

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
        counted = select(*columns, func.count()).where(*tasks).group_by(*columns)
        present = select(
            PhaseRow.kind, func.sum(PhaseRow.devices_here), func.sum(PhaseRow.devices_eligible)
        )
        funnels: dict[str, Funnel] = {}
        with reading(self._engine) as session:
            if run_id and session.get(RunRow, run_id) is None:
                raise NotFound(f"there is no run {run_id!r}; `hfmds run list` shows the runs")
            if round_number and session.get(RoundRow, (run_id, round_number)) is None:
                raise NotFound(f"run {run_id!r} has not begun round {round_number}")
            by_kind = session.execute(present.where(*phases).group_by(PhaseRow.kind))
            for kind, devices_here, devices_eligible in by_kind:
                funnels[kind] = Funnel(kind, here=devices_here, eligible=devices_eligible)
            for kind, state, stage, reason, cause, refusal, count in session.execute(counted):
                funnel = funnels.setdefault(kind, Funnel(kind))
                _add(funnel, TaskState[state], stage, reason, cause, refusal, count)
        return tuple(funnels[kind] for kind in sorted(funnels))

    def stages(self) -> Mapping[TaskStage, int]:
        """Count the pending tasks in each stage."""
        pending = (
            select(TaskRow.stage, func.count())
            .where(TaskRow.state.in_(PENDING_NAMES))
            .group_by(TaskRow.stage)
        )
        with reading(self._engine) as session:
            counts = {row[0]: row[1] for row in session.execute(pending)}
        return {stage: counts.get(int(stage), 0) for stage in TaskStage}


def _add(
    funnel: Funnel,
    state: TaskState,
    stage: int,
    over_reason: str,
    failure_cause: str,
    refusal: str,
    count: int,
) -> None:
    funnel.assigned += count
    for reached in list(TaskStage)[1 : stage + 1]:
        name = reached.name.lower()
        setattr(funnel, name, getattr(funnel, name) + count)
    if refusal:
        _count(funnel.refused, refusal, count)
    match state:
        case TaskState.ACCEPTED:
            funnel.accepted += count
        case TaskState.ASSIGNED | TaskState.LEASED:
            funnel.pending += count
        case TaskState.OVER if stage == TaskStage.ASSIGNED:
            funnel.unneeded += count
        case TaskState.OVER if over_reason != LateReason.FAILED.name:
            _count(funnel.late, LateReason[over_reason].value, count)
        case _:
            _count(funnel.failed, FailureCause[failure_cause].value, count)


def _count(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count
