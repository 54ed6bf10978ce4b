"""Phases and tasks in the database: who is to do what, and what was accepted.

Every method is one transaction, so a `kill -9` falls before it or after it, never inside.

A task's life:  ASSIGNED -> LEASED -> ACCEPTED
                    |          |----> FAILED    the device gave it up
                    '----------'----> OVER      the phase closed, or the run ended, without it
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, case, func, select, update
from sqlalchemy.orm import Session

from coordinator.tables import PhaseRow, RunRow, TaskRow
from hfmds.algorithm.seeds import Phase as Kind
from hfmds.digest import Digest
from hfmds.errors import Conflict, NotAllowed, NotFound, TooLate
from hfmds.storage.database import reading, transaction
from hfmds.wire.types import RoundPolicy, RunState


class TaskState(enum.Enum):
    """Where a task is in its life."""

    ASSIGNED = "assigned"
    LEASED = "leased"
    ACCEPTED = "accepted"
    FAILED = "failed"
    OVER = "over"


_PENDING = (TaskState.ASSIGNED.name, TaskState.LEASED.name)


@dataclass(frozen=True, slots=True)
class PhaseKey:
    """Names a phase."""

    run_id: str
    round_number: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Task:
    """A task together with what its phase says of the work."""

    task_id: str
    key: PhaseKey
    device_id: str
    state: TaskState
    lease_seconds: float
    lease_expires_at: float
    weights: Digest
    reference: str
    report: bytes
    failure: str


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A phase with its tasks in device-id order."""

    key: PhaseKey
    opened_at: float
    deadline_at: float
    closed: bool
    tasks: tuple[Task, ...]

    def in_state(self, state: TaskState) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.state is state)

    @property
    def pending(self) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.state.name in _PENDING)


class TaskRecords:
    """What the coordinator remembers of its phases and tasks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- the round's side -----------------------------------------------------------------------

    def open_phase(
        self,
        key: PhaseKey,
        weights: Digest,
        reference: str,
        devices: Sequence[str],
        policy: RoundPolicy,
        now: float,
    ) -> PhaseRecord:
        """Open a phase with a task for each device; one that was opened before stays as it is."""
        with transaction(self._engine) as session:
            phase = session.get(PhaseRow, _primary_key(key))
            if phase is None:
                phase = PhaseRow(
                    run_id=key.run_id,
                    round_number=key.round_number,
                    kind=key.kind,
                    weights_sha256=weights.sha256,
                    weights_bytes=weights.size_bytes,
                    reference=reference,
                    opened_at=now,
                    deadline_seconds=policy.deadline_seconds,
                    deadline_at=now + policy.deadline_seconds,
                    lease_seconds=policy.lease_seconds,
                    closed=False,
                )
                session.add(phase)
                session.flush()
                _add_tasks(session, key, devices, now)
                session.flush()
            return _phase_record(session, phase)

    def find_phase(self, key: PhaseKey) -> PhaseRecord | None:
        """A phase, if it was ever opened."""
        with reading(self._engine) as session:
            phase = session.get(PhaseRow, _primary_key(key))
            return _phase_record(session, phase) if phase else None

    def get_phase(self, key: PhaseKey) -> PhaseRecord:
        """A phase that was opened."""
        with reading(self._engine) as session:
            return _phase_record(session, session.get_one(PhaseRow, _primary_key(key)))

    def extend_phase(self, key: PhaseKey, more_devices: Iterable[str], now: float) -> None:
        """Give a phase as much time again, and more devices."""
        with transaction(self._engine) as session:
            phase = session.get_one(PhaseRow, _primary_key(key))
            phase.deadline_at = now + phase.deadline_seconds
            _add_tasks(session, key, more_devices, now)

    def close_phase(self, key: PhaseKey) -> PhaseRecord:
        """End a phase; what is pending is over. A closed phase stays as it is."""
        with transaction(self._engine) as session:
            phase = session.get_one(PhaseRow, _primary_key(key))
            if not phase.closed:
                phase.closed = True
                session.execute(
                    update(TaskRow)
                    .where(*_of_phase(key), TaskRow.state.in_(_PENDING))
                    .values(state=TaskState.OVER.name)
                )
                session.flush()
            return _phase_record(session, phase)

    def models_handed_out(self, run_id: str) -> set[str]:
        """SHA-256 of every model the run has sent to devices."""
        with reading(self._engine) as session:
            sent = select(PhaseRow.weights_sha256).where(PhaseRow.run_id == run_id)
            return set(session.scalars(sent))

    def unable(self, run_id: str) -> set[str]:
        """Devices that gave a task of this run up, since it was created or last resumed."""
        with reading(self._engine) as session:
            failed = select(TaskRow.device_id).where(
                TaskRow.run_id == run_id, TaskRow.state == TaskState.FAILED.name
            )
            return set(session.scalars(failed))

    # --- the device's side ----------------------------------------------------------------------

    def lease(self, device_id: str, run_id: str, now: float) -> Task | None:
        """The device's next task, leased: the one it holds already, else the oldest assigned.

        Without a run id, a task of any running run.
        """
        candidates = (
            select(TaskRow)
            .join(RunRow, RunRow.run_id == TaskRow.run_id)
            .where(
                TaskRow.device_id == device_id,
                TaskRow.state.in_(_PENDING),
                RunRow.state == RunState.RUNNING.name,
            )
            # LEASED sorts after ASSIGNED: a device goes on with what it holds.
            .order_by(TaskRow.state.desc(), TaskRow.assigned_at, TaskRow.task_id)
            .limit(1)
        )
        if run_id:
            candidates = candidates.where(TaskRow.run_id == run_id)
        # Looked for first without the write lock: most check-ins find nothing.
        with reading(self._engine) as session:
            if session.scalar(candidates) is None:
                return None
        with transaction(self._engine) as session:
            row = session.scalar(candidates)
            if row is None:
                return None
            row.state = TaskState.LEASED.name
            row.lease_expires_at = now + _phase_of(session, row).lease_seconds
            return _task(row, _phase_of(session, row))

    def renew(self, device_id: str, task_id: str, now: float) -> float:
        """Extend a lease; returns its seconds."""
        with transaction(self._engine) as session:
            row = _own_task(session, device_id, task_id)
            _require_pending(row)
            seconds = _phase_of(session, row).lease_seconds
            row.lease_expires_at = now + seconds
            return seconds

    def expire_leases(self, device_id: str) -> set[str]:
        """Let the leases of a device that has gone run out now; the runs they were of."""
        held = (TaskRow.device_id == device_id, TaskRow.state == TaskState.LEASED.name)
        with transaction(self._engine) as session:
            runs = set(session.scalars(select(TaskRow.run_id).where(*held)))
            session.execute(update(TaskRow).where(*held).values(lease_expires_at=0.0))
            return runs

    def get(self, device_id: str, task_id: str) -> Task:
        """A device's own task."""
        with reading(self._engine) as session:
            row = _own_task(session, device_id, task_id)
            return _task(row, _phase_of(session, row))

    def get_pending(self, device_id: str, task_id: str) -> Task:
        """A device's own task, which must not be over."""
        with reading(self._engine) as session:
            row = _own_task(session, device_id, task_id)
            if row.state != TaskState.ACCEPTED.name:  # a repeated upload is answered as the first
                _require_pending(row)
            return _task(row, _phase_of(session, row))

    def accept(self, device_id: str, task_id: str, result: Digest, report: bytes) -> bool:
        """Count a result, once; true if the same one had been accepted before."""
        with transaction(self._engine) as session:
            row = _own_task(session, device_id, task_id)
            if row.state == TaskState.ACCEPTED.name:
                if row.result_sha256 != result.sha256:
                    raise Conflict(
                        f"task {task_id!r} was accepted with result {row.result_sha256[:12]}; "
                        f"{result} is not counted"
                    )
                return True
            _require_pending(row)
            row.state = TaskState.ACCEPTED.name
            row.result_sha256 = result.sha256
            row.report = report
            return False

    def fail(self, device_id: str, task_id: str, reason: str) -> bool:
        """Note that the device gave the task up; true if it had said so before."""
        with transaction(self._engine) as session:
            row = _own_task(session, device_id, task_id)
            if row.state == TaskState.FAILED.name:
                return True
            _require_pending(row)
            row.state, row.failure = TaskState.FAILED.name, reason
            row.failures += 1
            return False

    def last_failures(self) -> dict[str, str]:
        """Why each device last gave a task up."""
        told = (
            select(TaskRow.device_id, TaskRow.failure)
            .where(TaskRow.failures > 0)
            .order_by(TaskRow.assigned_at)
        )
        with reading(self._engine) as session:
            return {row[0]: row[1] for row in session.execute(told)}  # the last one stays

    def tallies(self) -> dict[str, tuple[int, int]]:
        """For each device, over all runs: tasks accepted, and how often it gave one up."""
        accepted = case((TaskRow.state == TaskState.ACCEPTED.name, 1), else_=0)
        by_device = select(
            TaskRow.device_id, func.sum(accepted), func.sum(TaskRow.failures)
        ).group_by(TaskRow.device_id)
        with reading(self._engine) as session:
            return {row[0]: (row[1], row[2]) for row in session.execute(by_device)}

    def leases(self, now: float) -> dict[str, str]:
        """The task each working device holds."""
        with reading(self._engine) as session:
            live = select(TaskRow.device_id, TaskRow.task_id).where(
                TaskRow.state == TaskState.LEASED.name, TaskRow.lease_expires_at > now
            )
            return dict(session.execute(live).all())


def end_pending(session: Session, run_id: str) -> None:
    """Within a transaction that ends a run: its pending tasks are over."""
    session.execute(
        update(TaskRow)
        .where(TaskRow.run_id == run_id, TaskRow.state.in_(_PENDING))
        .values(state=TaskState.OVER.name)
    )


def give_second_chance(session: Session, run_id: str, now: float) -> None:
    """Within a transaction that resumes a run: failed tasks and open deadlines start anew."""
    failed = (TaskRow.run_id == run_id, TaskRow.state == TaskState.FAILED.name)
    is_open = (PhaseRow.run_id == run_id, PhaseRow.closed.is_(False))
    for phase in session.scalars(select(PhaseRow).where(*is_open)):
        phase.deadline_at = now + phase.deadline_seconds
        session.execute(
            update(TaskRow)
            .where(*failed, *_of_phase(_key(phase)))
            .values(state=TaskState.ASSIGNED.name)
        )
    # Those of closed phases no longer count against their devices.
    session.execute(update(TaskRow).where(*failed).values(state=TaskState.OVER.name))


def _primary_key(key: PhaseKey) -> tuple[str, int, str]:
    return (key.run_id, key.round_number, key.kind)


def _of_phase(key: PhaseKey) -> tuple[ColumnElement[bool], ...]:
    return (
        TaskRow.run_id == key.run_id,
        TaskRow.round_number == key.round_number,
        TaskRow.kind == key.kind,
    )


def _add_tasks(session: Session, key: PhaseKey, devices: Iterable[str], now: float) -> None:
    nonce = session.get_one(RunRow, key.run_id).nonce
    for device_id in devices:
        # Derived, not drawn: assigning a device to the same phase twice is one task.
        name = f"{key.run_id}/{nonce}/{key.round_number}/{key.kind}/{device_id}"
        task_id = hashlib.sha256(name.encode()).hexdigest()[:32]
        if session.get(TaskRow, task_id) is None:
            session.add(
                TaskRow(
                    task_id=task_id,
                    run_id=key.run_id,
                    round_number=key.round_number,
                    kind=key.kind,
                    device_id=device_id,
                    state=TaskState.ASSIGNED.name,
                    assigned_at=now,
                )
            )


def _own_task(session: Session, device_id: str, task_id: str) -> TaskRow:
    row = session.get(TaskRow, task_id)
    if row is None:
        raise NotFound(f"there is no task {task_id[:140]!r}; check in again for new work")
    if row.device_id != device_id:
        raise NotAllowed(f"task {task_id!r} is not device {device_id!r}'s")
    return row


def _require_pending(row: TaskRow) -> None:
    if row.state not in _PENDING:
        raise TooLate(
            f"task {row.task_id!r} of run {row.run_id!r}, round {row.round_number}, is "
            f"{TaskState[row.state].value}; check in again for new work"
        )


def _phase_of(session: Session, row: TaskRow) -> PhaseRow:
    return session.get_one(PhaseRow, (row.run_id, row.round_number, row.kind))


def _task(row: TaskRow, phase: PhaseRow) -> Task:
    return Task(
        task_id=row.task_id,
        key=_key(phase),
        device_id=row.device_id,
        state=TaskState[row.state],
        lease_seconds=phase.lease_seconds,
        lease_expires_at=row.lease_expires_at,
        weights=Digest(phase.weights_sha256, phase.weights_bytes),
        reference=phase.reference,
        report=row.report,
        failure=row.failure,
    )


def _phase_record(session: Session, phase: PhaseRow) -> PhaseRecord:
    key = _key(phase)
    rows = session.scalars(select(TaskRow).where(*_of_phase(key)).order_by(TaskRow.device_id))
    tasks = tuple(_task(row, phase) for row in rows)
    return PhaseRecord(key, phase.opened_at, phase.deadline_at, phase.closed, tasks)


def _key(phase: PhaseRow) -> PhaseKey:
    kind: Kind = "train" if phase.kind == "train" else "synthesise"
    return PhaseKey(phase.run_id, phase.round_number, kind)
