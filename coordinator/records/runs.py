"""Runs and their completed rounds in the database. Every method is one transaction."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    SQLColumnExpression,
    and_,
    bindparam,
    delete,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.orm import Session

from coordinator.records.events import COORDINATOR, append_event, require_log
from coordinator.records.rounds import change_round, enter, round_state
from coordinator.records.states import RUN_TRANSITIONS, RoundState
from coordinator.records.tables import Base, RoundRow, RunRow
from coordinator.records.task_rows import end_pending, give_second_chance
from coordinator.runs.versions import (
    best_round,
    drop_models,
    dropped_content,
    reason_to_stop,
    require_kept,
)
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import Progress, Round, Run, RunSpec, RunState
from hfmds.domain.tasks import LateReason
from hfmds.errors import Conflict, NotFound, Unavailable, WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import changing, looking, reading, session_within, transaction
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind
from hfmds.wire.conversions.records import (
    decode_round,
    decode_run_spec,
    encode_round,
    encode_run_spec,
)

_POOL_NAME_CHARACTERS = 84  # of the run; with round and mark it is an id, of 128 at most
_REMEMBERED_SPECS = 256
_THIS_RUN = RunRow.run_id == bindparam("of_run")
_STATE = Prepared(select(RunRow.state).where(_THIS_RUN))
_STATE_AND_SPEC = Prepared(select(RunRow.state, RunRow.spec).where(_THIS_RUN))
_MARK = select(RunRow.nonce, RunRow.state).where(_THIS_RUN)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the database knows it; what it is doing right now is known to its driver."""

    run_id: str
    run_uid: str  # differs from that of any other run that ever had this id
    spec: RunSpec
    state: RunState
    state_reason: str
    created_at: float
    completed_rounds: int
    last_round: Round | None
    best_round: int = 0  # 0: none was evaluated
    start: Digest | None = None  # the model of another run that it starts from
    pool_key: str = field(default="", repr=False)  # a secret
    pool_mark_digits: int = 32

    def pool_id(self, round_number: int) -> str:
        """Names the pool of a refresh. Only devices that are asked to synthesise are told it."""
        mark = hmac.digest(self.pool_key.encode(), str(round_number).encode(), "sha256")
        name = self.run_uid
        if self.pool_mark_digits == 32:  # older runs keep the names that their pools have
            name = name[:_POOL_NAME_CHARACTERS]  # for people; the mark is what tells pools apart
        return f"{name}-{round_number}-{mark.hex()[: self.pool_mark_digits]}"

    def seen_with(self, progress: Progress | None) -> Run:
        """The run as operators see it."""
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
class Standing:
    """How far a run is."""

    completed_rounds: int
    state: RunState


class RunRecords:
    """What the coordinator remembers of its runs."""

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
        """Add a run, or find the one that was added with the same id; true if it is new.

        `start` is the model it begins with, in its content; None: fresh weights, which a run that
        is to start from another's model never gets.
        """
        with transaction(self._engine) as session:
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
            if spec.start_from and start is None:  # it was here when the model was to be copied
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
        """One run."""
        with reading(self._engine) as session:
            return _record(session, _row(session, run_id))

    def state(self, run_id: str) -> RunState:
        """Where one run is."""
        with looking(self._engine) as connection:
            return RunState[_found(_STATE, connection, run_id).state]

    def list(self, after: str = "", most: int | None = None) -> list[RunRecord]:
        """All runs, newest first; so many of them behind a run.

        Behind one that is gone the list starts over: better twice than never.
        """
        newest_first = select(RunRow).order_by(RunRow.created_at.desc(), RunRow.run_id).limit(most)
        with reading(self._engine) as session:
            if after and (last := session.get(RunRow, after)):
                of_the_same_time = and_(
                    RunRow.created_at == last.created_at, RunRow.run_id > last.run_id
                )
                newest_first = newest_first.where(
                    or_(RunRow.created_at < last.created_at, of_the_same_time)
                )
            return [_record(session, row) for row in session.scalars(newest_first)]

    def states(self) -> dict[RunState, int]:
        """How many runs there are in each state."""
        counts = select(RunRow.state, func.count()).group_by(RunRow.state)
        with reading(self._engine) as session:
            return {RunState[row[0]]: row[1] for row in session.execute(counts)}

    def completed_rounds(self) -> int:
        """How many rounds of all runs have been completed."""
        last = _last_number_of(RunRow.run_id).correlate(RunRow).scalar_subquery()
        with reading(self._engine) as session:
            return int(session.scalar(select(func.sum(last)).select_from(RunRow)) or 0)

    def active(self) -> Sequence[RunRecord]:
        """Those that have not ended, oldest first."""
        not_ended = [state.name for state in RunState if not state.ended]
        oldest_first = select(RunRow).order_by(RunRow.created_at, RunRow.run_id)
        with reading(self._engine) as session:
            rows = session.scalars(oldest_first.where(RunRow.state.in_(not_ended)))
            return [_record(session, row) for row in rows]

    def deleting(self) -> tuple[str, ...]:
        """The ids of those that are to be deleted."""
        going = select(RunRow.run_id).where(RunRow.state == RunState.DELETING.name)
        with reading(self._engine) as session:
            return tuple(sorted(session.scalars(going)))

    def exists(self, run_id: str) -> bool:
        """Whether there is such a run."""
        with reading(self._engine) as session:
            return session.get(RunRow, run_id) is not None

    def rounds(self, run_id: str, after: int = 0) -> tuple[Round, ...]:
        """The completed rounds after a number, in order."""
        with reading(self._engine) as session:
            _row(session, run_id)
            rows = session.scalars(
                select(RoundRow)
                .where(
                    RoundRow.run_id == run_id,
                    RoundRow.number > after,
                    RoundRow.state == RoundState.COMPLETED.name,
                )
                .order_by(RoundRow.number)
            )
            return tuple(map(_round, rows))

    def round(self, run_id: str, number: int) -> Round:
        """One completed round; 0 is the last."""
        with reading(self._engine) as session:
            return _round(_completed_row(session, run_id, number))

    def model(self, run_id: str, number: int) -> Digest:
        """The model after a completed round, which must be kept; 0 is the last."""
        with reading(self._engine) as session:
            row = _completed_row(session, run_id, number)
            require_kept(session, row)
            return decode_round(row.record).weights

    def dropped_models(self, run_id: str) -> set[str]:
        """SHA-256 of the models whose content is to go, or has gone."""
        with looking(self._engine) as connection:
            return dropped_content(connection, run_id)

    def pause(self, run_id: str, now: float, reason: str = "", by: str = COORDINATOR) -> RunRecord:
        """Stop handing out its work; a paused run stays as it is."""
        with transaction(self._engine) as session:
            row = _active_row(session, run_id)
            if row.state != RunState.PAUSED.name:
                _move(row, RunState.PAUSED, reason)
                append_event(
                    session.connection(), run_id, EventKind.RUN_PAUSED, now, by=by, reason=reason
                )
            return _record(session, row)

    def resume(self, run_id: str, now: float, by: str = COORDINATOR) -> RunRecord:
        """Go on; open deadlines start anew, and devices that gave up get another chance."""
        with transaction(self._engine) as session:
            row = _active_row(session, run_id)
            if row.state != RunState.RUNNING.name:
                _move(row, RunState.RUNNING)
                append_event(session.connection(), run_id, EventKind.RUN_RESUMED, now, by=by)
                give_second_chance(session.connection(), run_id, now)
            return _record(session, row)

    def cancel(self, run_id: str, now: float, by: str = COORDINATOR) -> RunRecord:
        """End it for good, and its pending tasks with it; a cancelled run stays so."""
        with transaction(self._engine) as session:
            row = _row(session, run_id)
            if row.state != RunState.CANCELLED.name:
                row = _active_row(session, run_id)
                _move(row, RunState.CANCELLED)
                append_event(session.connection(), run_id, EventKind.RUN_CANCELLED, now, by=by)
                end_pending(session.connection(), run_id, LateReason.CANCELLED, now)
            return _record(session, row)

    def begin_deletion(self, run_id: str, now: float, by: str) -> None:
        """Let a run that has ended go; one that is going, or gone, is left at that."""
        with transaction(self._engine) as session:
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
        """NotFound unless this very run is marked to be deleted."""
        run_id, _, nonce = run_uid.rpartition(".")
        with looking(self._engine) as connection:
            found = connection.execute(_MARK, {"of_run": run_id}).first()
        if found is None or tuple(found) != (nonce, RunState.DELETING.name):
            raise NotFound(f"run {run_uid!r} is not there to be deleted any more")

    def finish_deletion(self, run_id: str, now: float) -> None:
        """Forget all of a run but its log, once its content is gone."""
        with transaction(self._engine) as session:
            row = session.get(RunRow, run_id)
            if row is None or row.state != RunState.DELETING.name:
                return
            append_event(session.connection(), run_id, EventKind.RUN_DELETED, now)
            session.flush()
            for table in reversed(Base.metadata.sorted_tables):
                to_run = [
                    key.parent for key in table.foreign_keys if key.column.table.name == "runs"
                ]
                for column in to_run:
                    session.execute(delete(table).where(column == run_id))
            session.delete(row)

    def complete_round(self, run_id: str, completed: Round, now: float) -> Standing:
        """Record a round; the last one completes the run. A recorded one stays as it is.

        So does a run that has ended, as by a cancellation that its driver has not heard of.
        """
        number = completed.number
        with changing(self._engine) as connection:
            run = _found(_STATE_AND_SPEC, connection, run_id)
            if RunState[run.state].ended:
                with session_within(connection) as session:
                    return Standing(_last_number(session, run_id), RunState[run.state])
            if round_state(connection, run_id, number) is not RoundState.COMPLETED:
                enter(connection, run_id, number, RoundState.COMPLETED, now)
                model = {"round": number, "model": completed.weights.sha256}
                append_event(connection, run_id, EventKind.MODEL_KEPT, now, **model)
                change_round(
                    connection,
                    run_id,
                    number,
                    record=encode_round(completed),
                    accuracy=completed.accuracy,
                    weights_sha256=completed.weights.sha256,
                )
            spec = _spec(run.spec)
            last, policy = number == spec.recipe.rounds, spec.policy
            if last or policy.early_stop or not policy.retention.keeps_all:
                with session_within(connection) as session:
                    return _judged(session, run_id, number, policy, last, now)
            return Standing(number, RunState[run.state])


def _judged(
    session: Session, run_id: str, number: int, policy: RoundPolicy, last: bool, now: float
) -> Standing:
    """What a recorded round means for its run, and for the models before it."""
    row = _row(session, run_id)
    reason = "" if last else reason_to_stop(session, run_id, policy.early_stop)
    if last or reason:
        _move(row, RunState.COMPLETED, reason)
        append_event(session.connection(), run_id, EventKind.RUN_COMPLETED, now)
        end_pending(session.connection(), run_id, LateReason.COMPLETED, now)
    drop_models(session, run_id, number, policy.retention, now)
    return Standing(number, RunState[row.state])


@lru_cache(_REMEMBERED_SPECS)
def _spec(record: bytes) -> RunSpec:
    """What a run is to do, which never changes, decoded once and not with every round."""
    return decode_run_spec(record)


def _found(columns: Prepared, connection: Connection, run_id: str) -> Any:
    """These columns of a run that is there."""
    found = columns.first(connection, {"of_run": run_id})
    if found is None:
        raise _no_run(run_id)
    return found


def _row(session: Session, run_id: str) -> RunRow:
    row = session.get(RunRow, run_id)
    if row is None:
        raise _no_run(run_id)
    return row


def _no_run(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id!r}; `hfmds run list` shows those there are")


def _move(row: RunRow, wanted: RunState, reason: str = "") -> None:
    """Bring a run into another state; `reason` is what operators see."""
    what = f"run {row.run_id!r}"
    require_transition(RUN_TRANSITIONS, RunState[row.state], wanted, what)
    row.state, row.state_reason = wanted.name, reason


def _active_row(session: Session, run_id: str) -> RunRow:
    row = _row(session, run_id)
    state = RunState[row.state]
    if state.ended:
        raise WrongState(f"run {run_id!r} is {state.value}; create another one")
    return row


def _completed_row(session: Session, run_id: str, number: int) -> RoundRow:
    _row(session, run_id)
    row = session.get(RoundRow, (run_id, number or _last_number(session, run_id)))
    if row is None or row.state != RoundState.COMPLETED.name:
        raise NotFound(f"run {run_id!r} has no completed round {number or 'yet'}")
    return row


def _round(row: RoundRow) -> Round:
    return replace(decode_round(row.record), model_dropped=row.model_dropped)


def _last_number(session: Session, run_id: str) -> int:
    return session.scalar(_last_number_of(literal(run_id))) or 0


def _last_number_of(run_id: SQLColumnExpression[str]) -> Select[int]:
    """The number of a run's last completed round; not by `max`, which would look at all of them."""
    completed = RoundRow.state == RoundState.COMPLETED.name
    return (
        select(RoundRow.number)
        .where(RoundRow.run_id == run_id, completed)
        .order_by(RoundRow.number.desc())
        .limit(1)
    )


def _record(session: Session, row: RunRow) -> RunRecord:
    completed = _last_number(session, row.run_id)
    last = session.get(RoundRow, (row.run_id, completed))
    return RunRecord(
        run_id=row.run_id,
        run_uid=f"{row.run_id}.{row.nonce}",
        spec=decode_run_spec(row.spec),
        state=RunState[row.state],
        state_reason=row.state_reason,
        created_at=row.created_at,
        completed_rounds=completed,
        last_round=_round(last) if last else None,
        best_round=best_round(session, row.run_id),
        start=Digest(row.start_sha256, row.start_bytes) if row.start_sha256 else None,
        pool_key=row.pool_key,
        pool_mark_digits=row.pool_mark_digits,
    )
