"""Rounds in the database: where each is, from waiting for devices to its record.

A round enters a state in the same transaction as whatever the state stands for: a phase that is
opened or closed, a record that is written. So a `kill -9` finds the round in one state or the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, bindparam, insert, select, update

from coordinator.records.events import append_event
from coordinator.records.states import ROUND_TRANSITIONS, RoundState
from coordinator.records.tables import RoundRow, RunRow
from hfmds.domain.runs import RunState
from hfmds.errors import WrongState
from hfmds.state_machine import require_transition
from hfmds.storage.database import changing, reading
from hfmds.storage.prepared import Prepared
from hfmds.wire.conversions.events import EventKind

_THIS_ROUND = (
    RoundRow.run_id == bindparam("of_run"),
    RoundRow.number == bindparam("of_number"),
)
_STATE = Prepared(select(RoundRow.state).where(*_THIS_ROUND))
_CHANGE = Prepared(update(RoundRow).where(*_THIS_ROUND))
_BEGIN = Prepared(insert(RoundRow))
_STATE_OF_RUN = Prepared(select(RunRow.state).where(RunRow.run_id == bindparam("run_id")))


@dataclass(frozen=True, slots=True)
class RoundInProgress:
    """A round that is not completed."""

    number: int
    state: RoundState
    began_at: float
    entered_at: float  # its state


def round_state(connection: Connection, run_id: str, number: int) -> RoundState | None:
    """Where a round is; None before it has begun."""
    found = _STATE.value(connection, {"of_run": run_id, "of_number": number})
    return None if found is None else RoundState[found]


def change_round(connection: Connection, run_id: str, number: int, **values: object) -> None:
    """Write to columns of one round; its state changes by `enter` alone."""
    _CHANGE.change(connection, {"of_run": run_id, "of_number": number, **values})


def enter(connection: Connection, run_id: str, number: int, wanted: RoundState, now: float) -> None:
    """Within a transaction: the only way a round changes its state. Where it is, it stays."""
    current = round_state(connection, run_id, number)
    if current is None:
        raise LookupError(f"round {number} of run {run_id!r} has not begun")
    if current is not wanted:
        what = f"round {number} of run {run_id!r}"
        require_transition(ROUND_TRANSITIONS, current, wanted, what)
        change_round(connection, run_id, number, state=wanted.name, entered_at=now)
        _tell(connection, run_id, number, wanted, now)


def require_going_on(connection: Connection, run_id: str) -> None:
    """Within a transaction that begins something new: refuse it if the run has ended.

    A driver hears of a cancellation a little later, and must not begin anything in between.
    """
    state = _STATE_OF_RUN.value(connection, {"run_id": run_id})
    if state is None or RunState[state].ended:
        raise WrongState(f"run {run_id!r} has ended; nothing new begins in it")


class RoundRecords:
    """What the coordinator remembers of the rounds in progress. Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, run_id: str, number: int, now: float) -> None:
        """Begin to wait for a round's devices; a round that has begun stays where it is."""
        with changing(self._engine) as connection:
            if round_state(connection, run_id, number) is None:
                require_going_on(connection, run_id)
                row = {
                    "run_id": run_id,
                    "number": number,
                    "state": RoundState.WAITING.name,
                    "began_at": now,
                    "entered_at": now,
                    "record": b"",
                    "weights_sha256": "",
                    "model_dropped": False,
                }
                _BEGIN.change(connection, row)
                _tell(connection, run_id, number, RoundState.WAITING, now)

    def enter(self, run_id: str, number: int, wanted: RoundState, now: float) -> None:
        """Bring a round into a state that stands for nothing else in the database."""
        with changing(self._engine) as connection:
            enter(connection, run_id, number, wanted, now)

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


def _tell(connection: Connection, run_id: str, number: int, state: RoundState, now: float) -> None:
    """Write the event of a round that has entered a state."""
    kind = EventKind.ROUND_ENTERED
    append_event(connection, run_id, kind, now, round=number, state=state.name.lower())
