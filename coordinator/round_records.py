"""Rounds in the database: where each is, from waiting for devices to its record.

A round enters a state in the same transaction as whatever the state stands for: a phase that is
opened or closed, a record that is written. So a `kill -9` finds the round in one state or the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from coordinator.events import append_event
from coordinator.states import ROUND_TRANSITIONS, RoundState
from coordinator.tables import RoundRow, RunRow
from hfmds.errors import WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import reading, transaction
from hfmds.wire.events import EventKind
from hfmds.wire.types import RunState


@dataclass(frozen=True, slots=True)
class RoundInProgress:
    """A round that is not completed."""

    number: int
    state: RoundState
    began_at: float
    entered_at: float  # its state


def enter(session: Session, run_id: str, number: int, wanted: RoundState, now: float) -> None:
    """Within a transaction: the only way a round changes its state. Where it is, it stays."""
    row = session.get_one(RoundRow, (run_id, number))
    current = RoundState[row.state]
    if current is not wanted:
        what = f"round {number} of run {run_id!r}"
        require_transition(ROUND_TRANSITIONS, current, wanted, what)
        row.state, row.entered_at = wanted.name, now
        _tell(session, run_id, number, wanted, now)


def require_going_on(session: Session, run_id: str) -> None:
    """Within a transaction that begins something new: refuse it if the run has ended.

    A driver hears of a cancellation a little later, and must not begin anything in between.
    """
    run = session.get(RunRow, run_id)
    if run is None or RunState[run.state].ended:
        raise WrongState(f"run {run_id!r} has ended; nothing new begins in it")


class RoundRecords:
    """What the coordinator remembers of the rounds in progress. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, run_id: str, number: int, now: float) -> None:
        """Begin to wait for a round's devices; a round that has begun stays where it is."""
        with transaction(self._engine) as session:
            if session.get(RoundRow, (run_id, number)) is None:
                require_going_on(session, run_id)
                session.add(
                    RoundRow(
                        run_id=run_id,
                        number=number,
                        state=RoundState.WAITING.name,
                        began_at=now,
                        entered_at=now,
                    )
                )
                _tell(session, run_id, number, RoundState.WAITING, now)

    def enter(self, run_id: str, number: int, wanted: RoundState, now: float) -> None:
        """Bring a round into a state that stands for nothing else in the database."""
        with transaction(self._engine) as session:
            enter(session, run_id, number, wanted, now)

    def in_progress(self, run_id: str) -> RoundInProgress | None:
        """The round a run is in; None between rounds."""
        unfinished = select(RoundRow).where(
            RoundRow.run_id == run_id, RoundRow.state != RoundState.COMPLETED.name
        )
        with reading(self._engine) as session:
            row = session.scalar(unfinished)
            if row is None:
                return None
            state = RoundState[row.state]
            return RoundInProgress(row.number, state, row.began_at, row.entered_at)


def _tell(session: Session, run_id: str, number: int, state: RoundState, now: float) -> None:
    """Write the event of a round that has entered a state."""
    kind = EventKind.ROUND_ENTERED
    append_event(session, run_id, kind, now, round=number, state=state.name.lower())
