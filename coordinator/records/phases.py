"""Phases as a round sees them: which devices have tasks, what came, when it is over.

Each method is one transaction: a `kill -9` falls before it or after it, never inside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    func,
    insert,
    or_,
    select,
    update,
)

from coordinator.records.acceptance import close_phase, count_waiting_results
from coordinator.records.drain import is_drained
from coordinator.records.events import append_event
from coordinator.records.rounds import enter, require_not_ended, round_state
from coordinator.records.states import PENDING, RoundState, TaskState
from coordinator.records.tables import PhaseRow, TaskRow
from coordinator.records.tasks import (
    PENDING_NAMES,
    SELECT_TASKS,
    PhaseKey,
    Task,
    add_tasks,
    counted_in,
    end_tasks,
    of_phase,
    read_tasks,
)
from hfmds.domain.administration.events import EventKind
from hfmds.domain.digest import Digest
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import Staleness
from hfmds.domain.tasks import LateReason
from hfmds.storage.database import read_connection, read_session, write_connection

_STATE_DURING = {
    "synthesise": RoundState.SYNTHESISING,
    "train": RoundState.TRAINING,
    "evaluate": RoundState.EVALUATING,
}

_PHASE_COLUMNS = (
    PhaseRow.opened_at,
    PhaseRow.deadline_at,
    PhaseRow.goal,
    PhaseRow.closed,
    PhaseRow.asynchronous,
)
_TASK_COLUMNS = (
    TaskRow.device_id,
    TaskRow.round_number,
    TaskRow.state,
    TaskRow.lease_expires_at,
    TaskRow.counted_round,
    TaskRow.over_reason,
)


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """What a phase asks of devices."""

    key: PhaseKey
    weights: Digest
    reference: str  # a pool id, or a snapshot id ("" without a pool)
    policy: RoundPolicy
    goal: int = 0  # the results that close it; 0: it closes when no more can come
    excluded: frozenset[str] = frozenset()  # devices that are not asked

    @property
    def asynchronous(self) -> bool:
        """Whether its tasks outlive it."""
        return self.key.kind == "train" and self.policy.asynchronous is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """The numbers of devices when a phase opens."""

    here: int
    eligible: int


NOBODY_SEEN = Seen(0, 0)


@dataclass(frozen=True, slots=True)
class PhaseTask:
    """The part of a task that a round needs while it goes on."""

    device_id: str
    round_number: int
    state: TaskState
    lease_expires_at: float
    counted_round: int
    over_reason: str


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A phase with its tasks, in device-id order.

    In asynchronous rounds these include tasks of earlier rounds that are pending, or that count in
    this round.
    """

    key: PhaseKey
    opened_at: float
    deadline_at: float
    goal: int
    closed: bool
    asynchronous: bool
    tasks: tuple[PhaseTask, ...]
    stale: int = 0  # tasks of earlier rounds that its opening ended

    @property
    def counted(self) -> int:
        """The number of results that count in this round."""
        return sum(task.counted_round == self.key.round_number for task in self.tasks)

    @property
    def pending(self) -> tuple[PhaseTask, ...]:
        """The tasks whose results the coordinator still wants."""
        return tuple(task for task in self.tasks if task.state in PENDING)

    @property
    def failed(self) -> tuple[PhaseTask, ...]:
        """The tasks that devices gave up, or were too slow for."""
        return tuple(
            task
            for task in self.tasks
            if task.state is TaskState.FAILED or task.over_reason == LateReason.TOO_SLOW.name
        )

    @property
    def asked(self) -> set[str]:
        """The devices that have a task of this round, or any pending task."""
        return {
            task.device_id
            for task in self.tasks
            if task.round_number == self.key.round_number or task.state in PENDING
        }


class PhaseRecords:
    """The coordinator's records of its phases."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open(
        self, spec: PhaseSpec, devices: Sequence[str], now: float, seen: Seen = NOBODY_SEEN
    ) -> PhaseRecord:
        """Open a phase with a task for each device; an opened phase stays as it is."""
        key, policy = spec.key, spec.policy
        stale = 0
        with write_connection(self._engine) as connection:
            phase = _find(connection, key)
            if phase is not None:
                return phase
            require_not_ended(connection, key.run_id)
            connection.execute(
                insert(PhaseRow).values(
                    run_id=key.run_id,
                    round_number=key.round_number,
                    kind=key.kind,
                    weights_sha256=spec.weights.sha256,
                    weights_bytes=spec.weights.size_bytes,
                    reference=spec.reference,
                    opened_at=now,
                    deadline_seconds=policy.deadline_seconds,
                    deadline_at=now + policy.deadline_seconds,
                    lease_seconds=policy.lease_seconds,
                    goal=spec.goal,
                    asynchronous=spec.asynchronous,
                    devices_here=seen.here,
                    devices_eligible=seen.eligible,
                )
            )
            add_tasks(connection, key, devices, now)
            _append_opening_events(connection, spec, len(devices), now)
            enter(connection, key.run_id, key.round_number, _STATE_DURING[key.kind], now)
            if spec.asynchronous and policy.asynchronous:
                oldest = key.round_number - policy.asynchronous.max_staleness
                too_old = (
                    TaskRow.run_id == key.run_id,
                    TaskRow.kind == key.kind,
                    TaskRow.round_number < oldest,
                )
                stale = end_tasks(connection, LateReason.STALE, now, *too_old)
                count_waiting_results(connection, key, spec.goal, now)
            return replace(_require(connection, key), stale=stale)

    def are_drained(self) -> bool:
        """Return whether an operator wants that no new phase opens."""
        with read_connection(self._engine) as connection:
            return is_drained(connection)

    def find(self, key: PhaseKey) -> PhaseRecord | None:
        """Return a phase; None if it was never opened."""
        with read_connection(self._engine) as connection:
            return _find(connection, key)

    def get(self, key: PhaseKey) -> PhaseRecord:
        """Return a phase that was opened."""
        with read_connection(self._engine) as connection:
            return _require(connection, key)

    def ask(self, key: PhaseKey, devices: Collection[str], now: float) -> None:
        """Give a phase more devices, if it is still open."""
        with write_connection(self._engine) as connection:
            if not _require(connection, key).closed:
                add_tasks(connection, key, devices, now)

    def extend(self, key: PhaseKey, devices: Collection[str], now: float) -> None:
        """Give a phase its time again, and more devices, if it is still open."""
        with write_connection(self._engine) as connection:
            if _require(connection, key).closed:
                return
            extended = update(PhaseRow).values(deadline_at=now + PhaseRow.deadline_seconds)
            connection.execute(extended.where(*_is_phase(key)))
            add_tasks(connection, key, devices, now)
            _append_phase_event(
                connection, key, EventKind.PHASE_EXTENDED, now, devices=len(devices)
            )

    def end_slow(self, key: PhaseKey, leased_before: float, now: float) -> int:
        """End the tasks that were leased at this time or before, and return their number."""
        slow = (
            TaskRow.run_id == key.run_id,  # of any round, because asynchronous tasks live on
            TaskRow.kind == key.kind,
            TaskRow.state == TaskState.LEASED.name,
            TaskRow.leased_at <= leased_before,
        )
        with read_session(self._engine) as session:  # mostly there are none: take no write lock
            if not session.scalar(select(func.count()).where(*slow)):
                return 0
        with write_connection(self._engine) as connection:
            leased = (TaskState.LEASED,)
            return end_tasks(connection, LateReason.TOO_SLOW, now, *slow, states=leased)

    def close(self, key: PhaseKey, reason: LateReason, now: float) -> None:
        """Close a phase and end the tasks still at work; a closed phase stays as it is."""
        with write_connection(self._engine) as connection:
            phase = _require(connection, key)
            if not phase.closed:
                close_phase(connection, key, reason, now, asynchronous=phase.asynchronous)

    def results(self, key: PhaseKey) -> tuple[Task, ...]:
        """Return the tasks whose results count in this phase's round, by device id."""
        with read_connection(self._engine) as connection:
            tasks = read_tasks(connection, SELECT_TASKS.where(*counted_in(key)))
        # Sorted here, because a database may sort text by the rules of a language. The mean is
        # taken in the order of code points, on every machine.
        return tuple(sorted(tasks, key=lambda task: task.device_id))

    def first_failure(self, key: PhaseKey) -> tuple[str, str]:
        """Return the first device, by id, that gave a task of this phase up, and why."""
        failed = select(TaskRow.device_id, TaskRow.failure).where(
            *of_phase(key), TaskRow.state == TaskState.FAILED.name
        )
        with read_session(self._engine) as session:
            return min(((row[0], row[1]) for row in session.execute(failed)), default=("", ""))

    def staleness(self, run_id: str, round_number: int) -> Staleness | None:
        """Return how old the results of an asynchronous round were; None if there were none."""
        counted = counted_in(PhaseKey(run_id, round_number, "train"))
        with read_session(self._engine) as session:
            began = session.scalars(select(TaskRow.round_number).where(*counted))
            ages = [round_number - number for number in began]
        return Staleness(sum(ages) / len(ages), max(ages)) if ages else None


def _is_phase(key: PhaseKey) -> tuple[ColumnElement[bool], ...]:
    return (
        PhaseRow.run_id == key.run_id,
        PhaseRow.round_number == key.round_number,
        PhaseRow.kind == key.kind,
    )


def _append_opening_events(
    connection: Connection, spec: PhaseSpec, devices: int, now: float
) -> None:
    """Write the event of a phase that opens, and of the pool that was sealed before it."""
    key = spec.key
    if round_state(connection, key.run_id, key.round_number) is RoundState.SEALING:
        sealed = EventKind.POOL_SEALED
        _append_phase_event(connection, key, sealed, now, snapshot=spec.reference)
    _append_phase_event(
        connection,
        key,
        EventKind.PHASE_OPENED,
        now,
        devices=devices,
        goal=spec.goal,
        model=spec.weights.sha256,
    )


def _append_phase_event(
    connection: Connection, key: PhaseKey, kind: EventKind, now: float, **details: object
) -> None:
    phase = {"round": key.round_number, "phase": key.kind}
    append_event(connection, key.run_id, kind, now, **phase, **details)


def _find(connection: Connection, key: PhaseKey) -> PhaseRecord | None:
    """Return a phase with its tasks; None if it was never opened."""
    phase = connection.execute(select(*_PHASE_COLUMNS).where(*_is_phase(key))).first()
    if phase is None:
        return None
    opened_at, deadline_at, goal, closed, asynchronous = phase
    of_round = TaskRow.round_number == key.round_number
    if asynchronous:
        counted = TaskRow.counted_round == key.round_number
        of_round = or_(of_round, counted, TaskRow.state.in_(PENDING_NAMES))
    of_run = (TaskRow.run_id == key.run_id, TaskRow.kind == key.kind)
    rows = connection.execute(select(*_TASK_COLUMNS).where(*of_run, of_round))
    tasks = [
        PhaseTask(device_id, number, TaskState[state], expires_at, counted_round, reason)
        for device_id, number, state, expires_at, counted_round, reason in rows
    ]
    tasks.sort(key=lambda task: (task.device_id, task.round_number))
    return PhaseRecord(key, opened_at, deadline_at, goal, closed, asynchronous, tuple(tasks))


def _require(connection: Connection, key: PhaseKey) -> PhaseRecord:
    phase = _find(connection, key)
    if phase is None:
        raise LookupError(f"{key} was never opened")
    return phase
