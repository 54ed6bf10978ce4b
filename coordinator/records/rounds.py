"""Rounds: where each is, from waiting for devices to its record, and the records of completed ones.

A round enters a state in the transaction of the change that the state stands for: a phase opens or
closes, a record is written. So a `kill -9` finds the round in one state or in the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    SQLColumnExpression,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.orm import Session

from coordinator.records.events import append_event
from coordinator.records.states import ROUND_TRANSITIONS, RoundState
from coordinator.records.tables import RoundRow, RunRow
from hfmds.domain.administration.events import EventKind
from hfmds.domain.round_policy import EarlyStop
from hfmds.domain.runs import Round, RunState
from hfmds.errors import NotFound, WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import read_session, write_connection
from hfmds.wire.conversions.records import decode_round


@dataclass(frozen=True, slots=True)
class RoundInProgress:
    """A round that is not completed."""

    number: int
    state: RoundState
    began_at: float
    entered_at: float  # when it entered its state


def round_state(connection: Connection, run_id: str, number: int) -> RoundState | None:
    """Return the state of a round; None before it begins."""
    this_round = (RoundRow.run_id == run_id, RoundRow.number == number)
    state = connection.scalar(select(RoundRow.state).where(*this_round))
    return None if state is None else RoundState[state]


def update_round(connection: Connection, run_id: str, number: int, **values: object) -> None:
    """Write columns of a round; only `enter` changes its state."""
    this_round = (RoundRow.run_id == run_id, RoundRow.number == number)
    connection.execute(update(RoundRow).where(*this_round).values(**values))


def enter(connection: Connection, run_id: str, number: int, state: RoundState, now: float) -> None:
    """Bring a round into a state, in the caller's transaction. It may be in that state already."""
    current = round_state(connection, run_id, number)
    if current is None:
        raise LookupError(f"round {number} of run {run_id!r} has not begun")
    if current is not state:
        name = f"round {number} of run {run_id!r}"
        require_transition(ROUND_TRANSITIONS, current, state, name)
        update_round(connection, run_id, number, state=state.name, entered_at=now)
        _append_round_event(connection, run_id, number, state, now)


def require_not_ended(connection: Connection, run_id: str) -> None:
    """Raise WrongState if the run has ended, in a transaction that begins something new.

    A driver hears of a cancellation a little later, and must not begin anything in between.
    """
    state = connection.scalar(select(RunRow.state).where(RunRow.run_id == run_id))
    if state is None or RunState[state].ended:
        raise WrongState(f"run {run_id!r} has ended; nothing new begins in it")


def best_round(session: Session, run_id: str) -> int:
    """Return the evaluated round with the highest accuracy, the first of equals; 0 without one."""
    best = (
        select(RoundRow.number)
        .where(RoundRow.run_id == run_id, RoundRow.accuracy.is_not(None))
        .order_by(RoundRow.accuracy.desc(), RoundRow.number)
        .limit(1)
    )
    return session.scalar(best) or 0


def reason_to_stop(session: Session, run_id: str, early_stop: EarlyStop | None) -> str:
    """Say why a run must end before its last round; empty: it goes on."""
    if early_stop is None:
        return ""
    measured = (
        select(RoundRow.accuracy)
        .where(RoundRow.run_id == run_id, RoundRow.accuracy.is_not(None))
        .order_by(RoundRow.number)
    )
    accuracies = [accuracy for accuracy in session.scalars(measured) if accuracy is not None]
    if not early_stop.exhausted(accuracies):
        return ""
    by = f" by more than {early_stop.min_improvement:.1%}" if early_stop.min_improvement else ""
    return (
        f"stopped early: accuracy has not risen{by} in {early_stop.patience_rounds} evaluated "
        f"rounds; the best is {max(accuracies):.1%} after round {best_round(session, run_id)}"
    )


class RoundRecords:
    """The coordinator's records of rounds. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, run_id: str, number: int, now: float) -> None:
        """Begin a round, which waits for devices; a round that has begun stays where it is."""
        with write_connection(self._engine) as connection:
            if round_state(connection, run_id, number) is not None:
                return
            require_not_ended(connection, run_id)
            waiting = RoundState.WAITING
            connection.execute(
                insert(RoundRow).values(
                    run_id=run_id, number=number, state=waiting.name, began_at=now, entered_at=now
                )
            )
            _append_round_event(connection, run_id, number, waiting, now)

    def enter(self, run_id: str, number: int, state: RoundState, now: float) -> None:
        """Bring a round into a state that stands for no other change in the database."""
        with write_connection(self._engine) as connection:
            enter(connection, run_id, number, state, now)

    def in_progress(self, run_id: str) -> RoundInProgress | None:
        """Return the round that a run is in; None between rounds."""
        unfinished = select(RoundRow).where(
            RoundRow.run_id == run_id, RoundRow.state != RoundState.COMPLETED.name
        )
        with read_session(self._engine) as session:
            row = session.scalar(unfinished)
            if row is None:
                return None
            return RoundInProgress(row.number, RoundState[row.state], row.began_at, row.entered_at)

    def completed(self, run_id: str, after: int = 0) -> tuple[Round, ...]:
        """Return the completed rounds after a number, in order."""
        with read_session(self._engine) as session:
            run_row(session, run_id)
            rows = session.scalars(
                select(RoundRow)
                .where(
                    RoundRow.run_id == run_id,
                    RoundRow.number > after,
                    RoundRow.state == RoundState.COMPLETED.name,
                )
                .order_by(RoundRow.number)
            )
            return tuple(map(round_of, rows))

    def get(self, run_id: str, number: int) -> Round:
        """Return a completed round; 0 is the last."""
        with read_session(self._engine) as session:
            return round_of(completed_row(session, run_id, number))

    def count_completed(self) -> int:
        """Count the completed rounds of all runs."""
        last = _last_number_of(RunRow.run_id).correlate(RunRow).scalar_subquery()
        with read_session(self._engine) as session:
            return int(session.scalar(select(func.sum(last)).select_from(RunRow)) or 0)


def run_row(session: Session, run_id: str) -> RunRow:
    """Return the row of a run; NotFound without one."""
    row = session.get(RunRow, run_id)
    if row is None:
        raise no_run(run_id)
    return row


def no_run(run_id: str) -> NotFound:
    """Return the error for a run that does not exist."""
    return NotFound(f"there is no run {run_id!r}; `hfmds run list` shows the runs")


def completed_row(session: Session, run_id: str, number: int) -> RoundRow:
    """Return the row of a completed round, 0 for the last; NotFound without one."""
    run_row(session, run_id)
    row = session.get(RoundRow, (run_id, number or last_number(session, run_id)))
    if row is None or row.state != RoundState.COMPLETED.name:
        raise NotFound(f"run {run_id!r} has no completed round {number or 'yet'}")
    return row


def round_of(row: RoundRow) -> Round:
    """Return a completed round."""
    return replace(decode_round(row.record), model_dropped=row.model_dropped)


def last_number(database: Session | Connection, run_id: str) -> int:
    """Return the number of the last completed round; 0 before the first."""
    return database.scalar(_last_number_of(literal(run_id))) or 0


def _last_number_of(run_id: SQLColumnExpression[str]) -> Select[int]:
    """Select the number of a run's last completed round.

    The index gives the newest row first. `max` reads all rows.
    """
    completed = RoundRow.state == RoundState.COMPLETED.name
    return (
        select(RoundRow.number)
        .where(RoundRow.run_id == run_id, completed)
        .order_by(RoundRow.number.desc())
        .limit(1)
    )


def _append_round_event(
    connection: Connection, run_id: str, number: int, state: RoundState, now: float
) -> None:
    """Write the event of a round that has entered a state."""
    entered = EventKind.ROUND_ENTERED
    append_event(connection, run_id, entered, now, round=number, state=state.name.lower())
