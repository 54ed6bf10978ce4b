"""Phases in the database, as the round sees them: who was asked, what came, when it is over.

Every method is one transaction, so a `kill -9` falls before it or after it, never inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    and_,
    bindparam,
    func,
    insert,
    or_,
    select,
    update,
)

from coordinator.records.acceptance import close, count_leftovers
from coordinator.records.events import append_event
from coordinator.records.rounds import enter, require_going_on, round_state
from coordinator.records.states import PENDING, RoundState, TaskState
from coordinator.records.tables import PhaseRow, TaskRow
from coordinator.records.task_rows import (
    PENDING_NAMES,
    THIS_PHASE,
    WHOLE_TASKS,
    PhaseKey,
    Task,
    WholeTask,
    add_tasks,
    end_tasks,
    of_phase,
    task_of,
    which,
)
from hfmds.domain.digest import Digest
from hfmds.domain.methods import TaskKind
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import Staleness
from hfmds.domain.tasks import LateReason
from hfmds.storage.database import changing, looking, reading
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind
from hfmds.wire.conversions.records import decode_update_report

_DURING = {
    "synthesise": RoundState.SYNTHESISING,
    "train": RoundState.TRAINING,
    "evaluate": RoundState.EVALUATING,
}

_PHASE = Prepared(
    select(
        PhaseRow.opened_at,
        PhaseRow.deadline_at,
        PhaseRow.deadline_seconds,
        PhaseRow.goal,
        PhaseRow.closed,
        PhaseRow.asynchronous,
    ).where(*THIS_PHASE)
)
_OPEN = Prepared(insert(PhaseRow))
_EXTEND = Prepared(update(PhaseRow).where(*THIS_PHASE))
_TASKS_OF_KIND = select(
    TaskRow.device_id,
    TaskRow.round_number,
    TaskRow.state,
    TaskRow.lease_expires_at,
    TaskRow.counted_round,
    TaskRow.over_reason,
).where(TaskRow.run_id == bindparam("of_run"), TaskRow.kind == bindparam("of_kind"))
_OF_ROUND = TaskRow.round_number == bindparam("of_round")
_TASKS = Prepared(_TASKS_OF_KIND.where(_OF_ROUND))
_ASYNCHRONOUS_TASKS = Prepared(
    _TASKS_OF_KIND.where(
        or_(
            _OF_ROUND,
            TaskRow.counted_round == bindparam("of_round"),
            TaskRow.state.in_(PENDING_NAMES),
        )
    )
)
_RESULTS = Prepared(
    WHOLE_TASKS.where(
        TaskRow.run_id == bindparam("of_run"),
        TaskRow.counted_round == bindparam("of_round"),
        TaskRow.kind == bindparam("of_kind"),
    )
)
_HANDED_OUT = Prepared(
    select(PhaseRow.weights_sha256).where(PhaseRow.run_id == bindparam("run_id"))
)
_UNABLE = Prepared(
    select(TaskRow.device_id).where(
        TaskRow.run_id == bindparam("run_id"),
        TaskRow.state == TaskState.FAILED.name,
        TaskRow.kind.in_(bindparam("kinds", expanding=True)),
    )
)
_LEASED = select(TaskRow.device_id).where(
    TaskRow.state == TaskState.LEASED.name, TaskRow.lease_expires_at > bindparam("now")
)
_AT_WORK = Prepared(_LEASED.where(TaskRow.run_id == bindparam("run_id")))
_AT_WORK_ELSEWHERE = Prepared(_LEASED.where(TaskRow.run_id != bindparam("run_id")))
_WAITING = select(TaskRow.result_sha256).where(
    TaskRow.run_id == bindparam("run_id"),
    TaskRow.kind == "train",
    TaskRow.state == TaskState.ACCEPTED.name,
    TaskRow.counted_round == 0,
)
_ANY_WAITING = Prepared(_WAITING.limit(1))
_ANY_PENDING = Prepared(
    select(TaskRow.task_id)
    .where(TaskRow.run_id == bindparam("run_id"), TaskRow.state.in_(PENDING_NAMES))
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """What a phase is to ask of devices."""

    key: PhaseKey
    weights: Digest
    reference: str  # pool id, or snapshot id ("" without a pool)
    policy: RoundPolicy
    goal: int = 0  # it closes with so many results; 0: when no more are to be expected

    @property
    def asynchronous(self) -> bool:
        return self.key.kind == "train" and self.policy.asynchronous is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """How many devices there are when a phase is opened, for those who look at it later."""

    here: int
    eligible: int


NOBODY_SEEN = Seen(0, 0)


@dataclass(frozen=True, slots=True)
class PhaseTask:
    """As much of a task as a round needs to know while it goes on."""

    device_id: str
    round_number: int
    state: TaskState
    lease_expires_at: float
    counted_round: int
    over_reason: str


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A phase with its tasks in device-id order.

    In asynchronous rounds with tasks of earlier rounds that are pending, or that count in this one.
    """

    key: PhaseKey
    opened_at: float
    deadline_at: float
    goal: int
    closed: bool
    tasks: tuple[PhaseTask, ...]
    stale: int = 0  # tasks of earlier rounds that its opening ended

    @property
    def counted(self) -> int:
        """How many results count in this round."""
        return sum(task.counted_round == self.key.round_number for task in self.tasks)

    @property
    def pending(self) -> tuple[PhaseTask, ...]:
        return tuple(task for task in self.tasks if task.state in PENDING)

    @property
    def failed(self) -> tuple[PhaseTask, ...]:
        """Those that devices gave up, or were too slow for."""
        return tuple(
            task
            for task in self.tasks
            if task.state is TaskState.FAILED or task.over_reason == LateReason.TOO_SLOW.name
        )

    @property
    def asked(self) -> set[str]:
        """The devices that have a task of this round, or any that is pending."""
        return {
            task.device_id
            for task in self.tasks
            if task.round_number == self.key.round_number or task.state in PENDING
        }


class PhaseRecords:
    """What the coordinator remembers of its phases."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open(
        self, plan: PhasePlan, devices: Sequence[str], now: float, seen: Seen = NOBODY_SEEN
    ) -> PhaseRecord:
        """Open a phase with a task for each device; one that was opened before stays as it is."""
        key, policy = plan.key, plan.policy
        stale = 0
        with changing(self._engine) as connection:
            if _PHASE.first(connection, which(key)) is None:
                require_going_on(connection, key.run_id)
                row = {
                    "run_id": key.run_id,
                    "round_number": key.round_number,
                    "kind": key.kind,
                    "weights_sha256": plan.weights.sha256,
                    "weights_bytes": plan.weights.size_bytes,
                    "reference": plan.reference,
                    "opened_at": now,
                    "deadline_seconds": policy.deadline_seconds,
                    "deadline_at": now + policy.deadline_seconds,
                    "lease_seconds": policy.lease_seconds,
                    "goal": plan.goal,
                    "asynchronous": plan.asynchronous,
                    "closed": False,
                    "devices_here": seen.here,
                    "devices_eligible": seen.eligible,
                }
                _OPEN.change(connection, row)
                add_tasks(connection, key, devices, now)
                _tell_of_opening(connection, plan, len(devices), now)
                enter(connection, key.run_id, key.round_number, _DURING[key.kind], now)
                if plan.asynchronous and policy.asynchronous:
                    too_old = TaskRow.round_number < (
                        key.round_number - policy.asynchronous.max_staleness
                    )
                    same_kind = (TaskRow.run_id == key.run_id, TaskRow.kind == key.kind)
                    stale = end_tasks(connection, LateReason.STALE, now, *same_kind, too_old)
                    count_leftovers(connection, key, plan.goal, now)
            return replace(_opened(connection, key), stale=stale)

    def find(self, key: PhaseKey) -> PhaseRecord | None:
        """A phase, if it was ever opened."""
        with looking(self._engine) as connection:
            return _record(connection, key)

    def get(self, key: PhaseKey) -> PhaseRecord:
        """A phase that was opened."""
        with looking(self._engine) as connection:
            return _opened(connection, key)

    def opened_at(self, key: PhaseKey) -> float:
        """When a phase was opened."""
        with looking(self._engine) as connection:
            return float(_PHASE.first(connection, which(key)).opened_at)

    def ask(self, key: PhaseKey, devices: Iterable[str], now: float) -> None:
        """Give a phase more devices, if it is still open."""
        with changing(self._engine) as connection:
            if not _PHASE.first(connection, which(key)).closed:
                add_tasks(connection, key, devices, now)

    def extend(self, key: PhaseKey, devices: Iterable[str], now: float) -> None:
        """Give a phase as much time again, and more devices, if it is still open."""
        with changing(self._engine) as connection:
            phase = _PHASE.first(connection, which(key))
            if not phase.closed:
                deadline_at = now + phase.deadline_seconds
                _EXTEND.change(connection, {**which(key), "deadline_at": deadline_at})
                more = list(devices)
                add_tasks(connection, key, more, now)
                _tell(connection, key, EventKind.PHASE_EXTENDED, now, devices=len(more))

    def end_slow(self, key: PhaseKey, leased_before: float, now: float) -> int:
        """End the tasks that devices have had since this time or longer; their number."""
        slow = (
            TaskRow.run_id == key.run_id,  # of any round: in asynchronous ones they live on
            TaskRow.kind == key.kind,
            TaskRow.state == TaskState.LEASED.name,
            TaskRow.leased_at <= leased_before,
        )
        with reading(self._engine) as session:  # mostly there are none: take no write lock
            if not session.scalar(select(func.count()).where(*slow)):
                return 0
        with changing(self._engine) as connection:
            leased = (TaskState.LEASED,)
            return end_tasks(connection, LateReason.TOO_SLOW, now, *slow, states=leased)

    def close(self, key: PhaseKey, reason: LateReason, now: float) -> None:
        """End a phase without those who are still at work. A closed phase stays as it is."""
        with changing(self._engine) as connection:
            phase = _PHASE.first(connection, which(key))
            if not phase.closed:
                close(connection, key, reason, now, asynchronous=phase.asynchronous)

    def results(self, key: PhaseKey) -> tuple[Task, ...]:
        """The tasks whose results count in this phase's round, by device id."""
        with looking(self._engine) as connection:
            found = map(task_of, _RESULTS.all(connection, which(key)))
            # Here and not by the database, which may order text as people of a country do: the
            # mean is taken in the order of code points, whatever the machine.
            return tuple(sorted(found, key=lambda task: task.device_id))

    def first_failure(self, key: PhaseKey) -> tuple[str, str]:
        """The first device, by id, that gave a task of this phase up, and why."""
        failed = select(TaskRow.device_id, TaskRow.failure).where(
            *of_phase(key), TaskRow.state == TaskState.FAILED.name
        )
        with reading(self._engine) as session:
            return min(((row[0], row[1]) for row in session.execute(failed)), default=("", ""))

    def staleness(self, run_id: str, round_number: int) -> Staleness | None:
        """How old the results of an asynchronous round were; None if there were none."""
        with reading(self._engine) as session:
            ages = [
                round_number - began
                for began in session.scalars(
                    select(TaskRow.round_number).where(
                        TaskRow.run_id == run_id,
                        TaskRow.counted_round == round_number,
                        TaskRow.kind == "train",
                    )
                )
            ]
            return Staleness(sum(ages) / len(ages), max(ages)) if ages else None

    # --- over all phases of a run ---------------------------------------------------------------

    def models_handed_out(self, run_id: str) -> set[str]:
        """SHA-256 of every model the run has sent to devices."""
        with looking(self._engine) as connection:
            return _firsts(_HANDED_OUT.all(connection, {"run_id": run_id}))

    @contextmanager
    def spent_updates(self, run_id: str, round_number: int) -> Iterator[set[str] | None]:
        """SHA-256 of the updates that made a round's model, while devices are still at work.

        Inside, no result is accepted: another device's may have the very same bytes. None when no
        task of the run is pending: then none of its updates is needed any more.
        """
        of_run = {"run_id": run_id}
        with looking(self._engine) as connection:
            waiting, pending = (s.first(connection, of_run) for s in (_ANY_WAITING, _ANY_PENDING))
        if waiting is None and pending is None:
            yield None
            return
        with changing(self._engine) as connection:
            spent = select(TaskRow.result_sha256).where(
                TaskRow.run_id == run_id,
                TaskRow.kind == "train",
                TaskRow.counted_round == round_number,
            )
            yield set(connection.scalars(spent)) - set(connection.scalars(_WAITING, of_run))

    def unable(self, run_id: str, *kinds: TaskKind) -> set[str]:
        """Devices that gave such a task of this run up, since it was created or last resumed."""
        with looking(self._engine) as connection:
            return _firsts(_UNABLE.all(connection, {"run_id": run_id, "kinds": [*kinds]}))

    def at_work(self, run_id: str, now: float) -> set[str]:
        """Devices at work for this run."""
        return self._at_work(_AT_WORK, run_id, now)

    def snapshots_in_use(self, run_id: str) -> tuple[str, ...]:
        """Those that devices have still to train with, by tasks whose results are wanted."""
        wanted = TaskRow.state.in_([state.name for state in PENDING])
        same_phase = (
            TaskRow.run_id == PhaseRow.run_id,
            TaskRow.round_number == PhaseRow.round_number,
            TaskRow.kind == PhaseRow.kind,
        )
        references = (
            select(PhaseRow.reference)
            .join(TaskRow, and_(*same_phase))
            .where(TaskRow.run_id == run_id, TaskRow.kind == "train", wanted)
            .distinct()
        )
        with reading(self._engine) as session:
            return tuple(sorted(set(session.scalars(references)) - {""}))

    def at_work_elsewhere(self, run_id: str, now: float) -> set[str]:
        """Devices at work for another run."""
        return self._at_work(_AT_WORK_ELSEWHERE, run_id, now)

    def _at_work(self, where: Prepared, run_id: str, now: float) -> set[str]:
        with looking(self._engine) as connection:
            return _firsts(where.all(connection, {"run_id": run_id, "now": now}))

    def last_losses(self, run_id: str) -> dict[str, float]:
        """The loss of each device's last accepted training in this run."""
        newest = (
            select(TaskRow.device_id, func.max(TaskRow.round_number).label("newest"))
            .where(
                TaskRow.run_id == run_id,
                TaskRow.kind == "train",
                TaskRow.state == TaskState.ACCEPTED.name,
            )
            .group_by(TaskRow.device_id)
            .subquery()
        )
        reports = select(TaskRow.device_id, TaskRow.report).join(
            newest,
            (TaskRow.device_id == newest.c.device_id) & (TaskRow.round_number == newest.c.newest),
        )
        with reading(self._engine) as session:
            found = session.execute(
                reports.where(TaskRow.run_id == run_id, TaskRow.kind == "train")
            ).all()
        return {device_id: decode_update_report(report).loss for device_id, report in found}


def _tell_of_opening(connection: Connection, plan: PhasePlan, devices: int, now: float) -> None:
    """Write the event of a phase that is being opened, and of the pool that it stands for."""
    key = plan.key
    if round_state(connection, key.run_id, key.round_number) is RoundState.SEALING:
        _tell(connection, key, EventKind.POOL_SEALED, now, snapshot=plan.reference)
    _tell(
        connection,
        key,
        EventKind.PHASE_OPENED,
        now,
        devices=devices,
        goal=plan.goal,
        model=plan.weights.sha256,
    )


def _tell(
    connection: Connection, key: PhaseKey, kind: EventKind, now: float, **details: object
) -> None:
    of_phase = {"round": key.round_number, "phase": key.kind}
    append_event(connection, key.run_id, kind, now, **of_phase, **details)


def _firsts(rows: Iterable[Any]) -> set[str]:
    """The first column of each row."""
    return {row[0] for row in rows}


def _order(task: WholeTask) -> tuple[str, int]:
    return task.device_id, task.round_number


def _opened(connection: Connection, key: PhaseKey) -> PhaseRecord:
    """A phase that was opened."""
    found = _record(connection, key)
    if found is None:
        raise LookupError(f"{key} was never opened")
    return found


def _record(connection: Connection, key: PhaseKey) -> PhaseRecord | None:
    phase = _PHASE.first(connection, which(key))
    if phase is None:
        return None
    tasks = (_ASYNCHRONOUS_TASKS if phase.asynchronous else _TASKS).all(connection, which(key))
    return PhaseRecord(
        key,
        phase.opened_at,
        phase.deadline_at,
        phase.goal,
        phase.closed,
        tuple(
            PhaseTask(device, number, TaskState[state], expires, counted, reason)
            for device, number, state, expires, counted, reason in sorted(tasks, key=_order)
        ),
    )
