"""Runs in the database. Each method is one transaction."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sqlalchemy import (
    Engine,
    and_,
    delete,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Session

from coordinator.records.events import COORDINATOR, append_event, require_log
from coordinator.records.retention import mark_dropped_models
from coordinator.records.rounds import (
    best_round,
    enter,
    last_number,
    no_run,
    reason_to_stop,
    round_of,
    round_state,
    run_row,
    update_round,
)
from coordinator.records.states import RUN_TRANSITIONS, RoundState
from coordinator.records.tables import Base, RoundRow, RunRow
from coordinator.records.tasks import end_pending, restart_failed_tasks
from hfmds.domain.administration.events import EventKind
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.runs import Progress, Round, Run, RunSpec, RunState
from hfmds.domain.tasks import LateReason
from hfmds.errors import Conflict, NotFound, Unavailable, WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import read_connection, read_session, write_session
from hfmds.wire.conversions.records import (
    decode_run_spec,
    encode_round,
    encode_run_spec,
)

_POOL_NAME_CHARACTERS = 84  # of the run uid: with round and mark, a pool id has at most 128


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the database has it; only its driver knows its progress within a round."""

    run_id: str
    run_uid: str  # unique, also among runs that had the same id
    spec: RunSpec
    state: RunState
    state_reason: str
    created_at: float
    completed_rounds: int
    last_round: Round | None
    best_round: int = 0  # 0: no round was evaluated
    start: Digest | None = None  # the model of another run that it starts from
    pool_key: str = field(default="", repr=False)  # a secret

    def pool_id(self, round_number: int) -> str:
        """Return the id of a refresh's pool, which only devices that synthesise for it learn.

        The name is for people. The mark, 128 bits in hex, tells pools apart.
        """
        mark = hmac.digest(self.pool_key.encode(), str(round_number).encode(), "sha256").hex()[:32]
        return f"{self.run_uid[:_POOL_NAME_CHARACTERS]}-{round_number}-{mark}"

    def seen_with(self, progress: Progress | None) -> Run:
        """Return the run as operators see it."""
        return Run(
            run_id=self.run_id,
            spec=self.spec,
            state=self.state,
            state_reason=self.state_reason,
            created_at=datetime.fromtimestamp(self.created_at, UTC),
            progress=None if self.state.ended else progress,
            completed_rounds=self.completed_rounds,
            last_round=replace(self.last_round, device_ids=()) if self.last_round else None,
            best_round=self.best_round,
        )


@dataclass(frozen=True, slots=True)
class RunPosition:
    """How many rounds a run has completed, and its state."""

    completed_rounds: int
    state: RunState


class RunRecords:
    """The coordinator's records of its runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self,
        run_id: str,
        spec: RunSpec,
        now: float,
        by: str = COORDINATOR,
        start: Digest | None = None,
    ) -> tuple[RunRecord, bool]:
        """Add a run, or return the run that has its id already; true if the run is new.

        `start` is the model that the run begins with, in its own content. None means fresh weights,
        which a run that starts from another run's model never gets.
        """
        with write_session(self._engine) as session:
            row = session.get(RunRow, run_id)
            if row is not None:
                if row.state == RunState.DELETING.name:
                    raise WrongState(
                        f"run {run_id!r} is being deleted; create it when it is gone, or choose "
                        "another id"
                    )
                if decode_run_spec(row.spec) != spec:
                    raise Conflict(
                        f"run {run_id!r} exists with another specification; choose another id"
                    )
                return _record(session, row), False
            if spec.start_from and start is None:  # the run existed when the caller looked
                raise Unavailable(f"run {run_id!r} was deleted just now; create it again")
            row = RunRow(
                run_id=run_id,
                nonce=secrets.token_hex(4),
                pool_key=secrets.token_hex(16),
                spec=encode_run_spec(spec),
                state=RunState.RUNNING.name,
                state_reason="",
                created_at=now,
                start_sha256=start.sha256 if start else "",
                start_bytes=start.size_bytes if start else 0,
            )
            session.add(row)
            session.flush()
            append_event(
                session.connection(),
                run_id,
                EventKind.RUN_CREATED,
                now,
                by=by,
                spec=digest_of(row.spec).sha256,
                method=spec.recipe.method.name,
                rounds=spec.recipe.rounds,
            )
            return _record(session, row), True

    def get(self, run_id: str) -> RunRecord:
        """Return a run."""
        with read_session(self._engine) as session:
            return _record(session, run_row(session, run_id))

    def state(self, run_id: str) -> RunState:
        """Return the state of a run."""
        with read_connection(self._engine) as connection:
            state = connection.scalar(select(RunRow.state).where(RunRow.run_id == run_id))
        if state is None:
            raise no_run(run_id)
        return RunState[state]

    def list(self, after: str = "", most: int | None = None) -> list[RunRecord]:
        """Return runs, newest first: at most `most`, after the run `after`.

        If that run is gone, the list starts over: a caller sees a run twice rather than never.
        """
        newest_first = select(RunRow).order_by(RunRow.created_at.desc(), RunRow.run_id).limit(most)
        with read_session(self._engine) as session:
            if after and (last := session.get(RunRow, after)):
                same_time = and_(RunRow.created_at == last.created_at, RunRow.run_id > last.run_id)
                newest_first = newest_first.where(
                    or_(RunRow.created_at < last.created_at, same_time)
                )
            return [_record(session, row) for row in session.scalars(newest_first)]

    def states(self) -> dict[RunState, int]:
        """Count the runs in each state."""
        counts = select(RunRow.state, func.count()).group_by(RunRow.state)
        with read_session(self._engine) as session:
            return {RunState[row[0]]: row[1] for row in session.execute(counts)}

    def active(self) -> Sequence[RunRecord]:
        """Return the runs that have not ended, oldest first."""
        not_ended = [state.name for state in RunState if not state.ended]
        oldest_first = select(RunRow).order_by(RunRow.created_at, RunRow.run_id)
        with read_session(self._engine) as session:
            rows = session.scalars(oldest_first.where(RunRow.state.in_(not_ended)))
            return [_record(session, row) for row in rows]

    def deleting(self) -> tuple[str, ...]:
        """Return the ids of the runs that are being deleted."""
        run_ids = select(RunRow.run_id).where(RunRow.state == RunState.DELETING.name)
        with read_session(self._engine) as session:
            return tuple(sorted(session.scalars(run_ids)))

    def exists(self, run_id: str) -> bool:
        """Return whether there is a run with this id."""
        with read_session(self._engine) as session:
            return session.get(RunRow, run_id) is not None

    def pause(self, run_id: str, now: float, reason: str = "", by: str = COORDINATOR) -> RunRecord:
        """Stop handing out the run's work; a paused run stays as it is."""
        with write_session(self._engine) as session:
            row = _active_row(session, run_id)
            if row.state != RunState.PAUSED.name:
                _move(row, RunState.PAUSED, reason)
                append_event(
                    session.connection(), run_id, EventKind.RUN_PAUSED, now, by=by, reason=reason
                )
            return _record(session, row)

    def resume(self, run_id: str, now: float, by: str = COORDINATOR) -> RunRecord:
        """Go on: restart the deadlines and the failed tasks of open phases."""
        with write_session(self._engine) as session:
            row = _active_row(session, run_id)
            if row.state != RunState.RUNNING.name:
                _move(row, RunState.RUNNING)
                append_event(session.connection(), run_id, EventKind.RUN_RESUMED, now, by=by)
                restart_failed_tasks(session.connection(), run_id, now)
            return _record(session, row)

    def cancel(self, run_id: str, now: float, by: str = COORDINATOR) -> RunRecord:
        """End the run and its pending tasks for good; a cancelled run stays as it is."""
        with write_session(self._engine) as session:
            row = run_row(session, run_id)
            if row.state != RunState.CANCELLED.name:
                row = _active_row(session, run_id)
                _move(row, RunState.CANCELLED)
                append_event(session.connection(), run_id, EventKind.RUN_CANCELLED, now, by=by)
                end_pending(session.connection(), run_id, LateReason.CANCELLED, now)
            return _record(session, row)

    def begin_deletion(self, run_id: str, now: float, by: str) -> None:
        """Mark an ended run for deletion; a run that is being deleted, or is gone, stays so."""
        with write_session(self._engine) as session:
            row = session.get(RunRow, run_id)
            if row is None:
                require_log(session, run_id)
                return
            state = RunState[row.state]
            if not state.ended:
                raise WrongState(f"run {run_id!r} is {state.value}; cancel it first")
            if state is not RunState.DELETING:
                _move(row, RunState.DELETING)
                append_event(session.connection(), run_id, EventKind.RUN_DELETING, now, by=by)

    def require_deleting(self, run_uid: str) -> None:
        """Raise NotFound unless exactly this run is marked for deletion."""
        run_id, _, nonce = run_uid.rpartition(".")
        with read_connection(self._engine) as connection:
            marked = select(RunRow.nonce, RunRow.state).where(RunRow.run_id == run_id)
            row = connection.execute(marked).first()
        if row is None or tuple(row) != (nonce, RunState.DELETING.name):
            raise NotFound(f"run {run_uid!r} is not marked for deletion: it was deleted before")

    def finish_deletion(self, run_id: str, now: float) -> None:
        """Delete the rows of a run except its log, after its content is deleted."""
        with write_session(self._engine) as session:
            row = session.get(RunRow, run_id)
            if row is None or row.state != RunState.DELETING.name:
                return
            append_event(session.connection(), run_id, EventKind.RUN_DELETED, now)
            session.flush()
            for table in reversed(Base.metadata.sorted_tables):
                for key in table.foreign_keys:
                    if key.column.table.name == RunRow.__tablename__:
                        session.execute(delete(table).where(key.parent == run_id))
            session.delete(row)

    def complete_round(self, run_id: str, completed: Round, now: float) -> RunPosition:
        """Record a round; the last round completes the run.

        A recorded round stays as it is. So does a run that has ended, for example by a cancellation
        that its driver has not heard of.
        """
        number = completed.number
        with write_session(self._engine) as session:
            row, connection = run_row(session, run_id), session.connection()
            if RunState[row.state].ended:
                return RunPosition(last_number(session, run_id), RunState[row.state])
            if round_state(connection, run_id, number) is not RoundState.COMPLETED:
                enter(connection, run_id, number, RoundState.COMPLETED, now)
                model = {"round": number, "model": completed.weights.sha256}
                append_event(connection, run_id, EventKind.MODEL_KEPT, now, **model)
                update_round(
                    connection,
                    run_id,
                    number,
                    record=encode_round(completed),
                    accuracy=completed.accuracy,
                    weights_sha256=completed.weights.sha256,
                )
            spec = decode_run_spec(row.spec)
            is_last = number == spec.recipe.rounds
            reason = "" if is_last else reason_to_stop(session, run_id, spec.policy.early_stop)
            if is_last or reason:
                _move(row, RunState.COMPLETED, reason)
                append_event(connection, run_id, EventKind.RUN_COMPLETED, now)
                end_pending(connection, run_id, LateReason.COMPLETED, now)
            mark_dropped_models(session, run_id, number, spec.policy.retention, now)
            return RunPosition(number, RunState[row.state])


def _move(row: RunRow, state: RunState, reason: str = "") -> None:
    """Bring a run into another state; operators see the reason."""
    require_transition(RUN_TRANSITIONS, RunState[row.state], state, f"run {row.run_id!r}")
    row.state, row.state_reason = state.name, reason


def _active_row(session: Session, run_id: str) -> RunRow:
    row = run_row(session, run_id)
    state = RunState[row.state]
    if state.ended:
        raise WrongState(f"run {run_id!r} is {state.value}; create another one")
    return row


def _record(session: Session, row: RunRow) -> RunRecord:
    completed = last_number(session, row.run_id)
    last = session.get(RoundRow, (row.run_id, completed))
    return RunRecord(
        run_id=row.run_id,
        run_uid=f"{row.run_id}.{row.nonce}",
        spec=decode_run_spec(row.spec),
        state=RunState[row.state],
        state_reason=row.state_reason,
        created_at=row.created_at,
        completed_rounds=completed,
        last_round=round_of(last) if last else None,
        best_round=best_round(session, row.run_id),
        start=Digest(row.start_sha256, row.start_bytes) if row.start_sha256 else None,
        pool_key=row.pool_key,
    )
