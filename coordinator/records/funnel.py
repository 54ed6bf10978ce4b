"""How far tasks come: what devices tell of it on the way, and the counts that operators see.

A stage is worth knowing, but not worth a commit of its own: it is noted in memory and written with
others within a second. A `kill -9` may lose that second; nothing but these counts depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from sqlalchemy import Engine, bindparam, func, select, update

from coordinator.records.states import TaskState
from coordinator.records.tables import PhaseRow, RoundRow, RunRow, TaskRow
from coordinator.records.tasks import PENDING_NAMES
from hfmds.domain.operations import Funnel
from hfmds.domain.tasks import FailureCause, LateReason, TaskStage
from hfmds.errors import InvalidInput, NotFound, Unavailable
from hfmds.storage.database import changing, reading

log = logging.getLogger(__name__)

_WRITE_AFTER_SECONDS = 1.0
_FARTHER = (
    update(TaskRow)
    .where(TaskRow.task_id == bindparam("which"), TaskRow.stage < bindparam("told"))
    .values(stage=bindparam("told"))
)


class StageNotes:
    """Notes the stages of tasks and writes them now and then. Thread-safe."""

    def __init__(
        self, engine: Engine, heard: Callable[[str, TaskStage], None] = lambda task_id, stage: None
    ) -> None:
        """`heard` is told at once of every stage, of a task that may have been there before."""
        self._engine = engine
        self._heard = heard
        self._lock = threading.Lock()
        self._noted: dict[str, TaskStage] = {}
        self._timer: threading.Timer | None = None

    def note(self, task_id: str, stage: TaskStage) -> None:
        """A device is as far as this with its task, or farther."""
        self._heard(task_id, stage)
        with self._lock:
            self._noted[task_id] = max(stage, self._noted.get(task_id, stage))
            if self._timer is None:
                self._timer = threading.Timer(_WRITE_AFTER_SECONDS, self.write)
                self._timer.daemon = True
                self._timer.start()

    def accepted(self, task_id: str) -> None:
        """Its result counts, which says more than any stage: there is nothing left to write."""
        with self._lock:
            self._noted.pop(task_id, None)

    def write(self) -> None:
        """Write what was noted. Storage that is away is no reason to trouble anyone."""
        with self._lock:
            noted, self._noted = self._noted, {}
            self._stop_timer()
        if not noted:
            return
        try:
            with changing(self._engine) as connection:
                told = sorted(noted.items())
                connection.execute(
                    _FARTHER, [{"which": t, "told": int(stage)} for t, stage in told]
                )
        except Unavailable as error:
            log.warning("the stages of %d tasks were not written: %s", len(noted), error)

    def close(self) -> None:
        """Write no more by itself."""
        with self._lock:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


class FunnelRecords:
    """Counts tasks by how far they came."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def funnels(self, run_id: str = "", round_number: int = 0) -> tuple[Funnel, ...]:
        """One for each kind of task: of all runs, of one, or of one of its rounds."""
        if round_number and not run_id:
            raise InvalidInput(f"round {round_number} is asked for, but of no run; name one")
        tasks, phases = [], []
        if run_id:
            tasks.append(TaskRow.run_id == run_id)
            phases.append(PhaseRow.run_id == run_id)
        if round_number:
            tasks.append(TaskRow.round_number == round_number)
            phases.append(PhaseRow.round_number == round_number)
        what = (
            TaskRow.kind,
            TaskRow.state,
            TaskRow.stage,
            TaskRow.over_reason,
            TaskRow.failure_cause,
            TaskRow.refusal,
        )
        counted = select(*what, func.count()).where(*tasks).group_by(*what)
        here = select(
            PhaseRow.kind, func.sum(PhaseRow.devices_here), func.sum(PhaseRow.devices_eligible)
        )
        funnels: dict[str, Funnel] = {}
        with reading(self._engine) as session:
            if run_id and session.get(RunRow, run_id) is None:
                raise NotFound(
                    f"there is no run {run_id!r}; `hfmds run list` shows those there are"
                )
            if round_number and session.get(RoundRow, (run_id, round_number)) is None:
                raise NotFound(f"run {run_id!r} has not begun round {round_number}")
            by_kind = session.execute(here.where(*phases).group_by(PhaseRow.kind))
            for kind, devices_here, devices_eligible in by_kind:
                funnels[kind] = Funnel(kind, here=devices_here, eligible=devices_eligible)
            for kind, state, stage, reason, cause, refusal, count in session.execute(counted):
                funnel = funnels.setdefault(kind, Funnel(kind))
                _add(funnel, TaskState[state], stage, reason, cause, refusal, count)
        return tuple(funnels[kind] for kind in sorted(funnels))

    def stages(self) -> Mapping[TaskStage, int]:
        """How many tasks that are wanted are in each stage; all stages are named."""
        pending = (
            select(TaskRow.stage, func.count())
            .where(TaskRow.state.in_(PENDING_NAMES))
            .group_by(TaskRow.stage)
        )
        with reading(self._engine) as session:
            found = {row[0]: row[1] for row in session.execute(pending)}
        return {stage: found.get(int(stage), 0) for stage in TaskStage}


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
