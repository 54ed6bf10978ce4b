"""What a run keeps: its models, and the other content that it still needs.

The rows alone decide it, so a restarted coordinator decides the same. Content is named by its
SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Select, and_, or_, select
from sqlalchemy.orm import Session

from coordinator.records.events import append_event
from coordinator.records.rounds import best_round, completed_row, last_number
from coordinator.records.states import RoundState, TaskState
from coordinator.records.tables import PhaseRow, RoundRow, RunRow, TaskRow
from coordinator.records.tasks import PENDING_NAMES
from hfmds.domain.administration.events import EventKind
from hfmds.domain.digest import Digest
from hfmds.domain.round_policy import Retention
from hfmds.domain.runs import RunState
from hfmds.errors import NotFound
from hfmds.storage.database import read_connection, read_session, write_connection
from hfmds.wire.conversions.records import decode_round


def mark_dropped_models(
    session: Session, run_id: str, last: int, retention: Retention, now: float
) -> None:
    """Mark the models that a run no longer keeps, in the transaction that records round `last`.

    A model that devices still work with stays until they are done: their results count from it.
    """
    if retention.keeps_all:
        return
    best = best_round(session, run_id)
    connection = session.connection()
    in_use = _models_of(connection, run_id, _open_tasks(connection, run_id))
    for row in session.scalars(_with_model(run_id)):
        kept = retention.keeps(row.number, last, best)
        if not kept and row.weights_sha256 not in in_use:
            row.model_dropped = True
            model = {"round": row.number, "model": row.weights_sha256}
            append_event(connection, run_id, EventKind.MODEL_DROPPED, now, **model)
    session.flush()


class RetentionRecords:
    """Tells which content runs need."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def model(self, run_id: str, number: int) -> Digest:
        """Return the model after a completed round, 0 for the last; NotFound if it is not kept."""
        with read_session(self._engine) as session:
            row = completed_row(session, run_id, number)
            _require_kept(session, row)
            return decode_round(row.record).weights

    @contextmanager
    def unneeded(self, run_id: str, stored: Sequence[Digest]) -> Iterator[list[Digest]]:
        """Yield which of the stored content a run no longer needs.

        While the run has open tasks, devices may have uploaded updates that no row names yet. Then
        this yields only content that a row names, and no result is accepted inside the block: the
        update of another device may have the same bytes.
        """
        with read_connection(self._engine) as connection:
            has_open_tasks = bool(_open_tasks(connection, run_id))
            needed = _needed(connection, run_id)
        if not has_open_tasks:
            yield [digest for digest in stored if digest.sha256 not in needed]
            return
        with write_connection(self._engine) as connection:
            spent = _used(connection, run_id) - _needed(connection, run_id)
            yield [digest for digest in stored if digest.sha256 in spent]

    def snapshots_in_use(self, run_id: str) -> tuple[str, ...]:
        """Return the snapshots that devices train with, by tasks whose results are wanted."""
        same_phase = (
            TaskRow.run_id == PhaseRow.run_id,
            TaskRow.round_number == PhaseRow.round_number,
            TaskRow.kind == PhaseRow.kind,
        )
        references = (
            select(PhaseRow.reference)
            .join(TaskRow, and_(*same_phase))
            .where(
                TaskRow.run_id == run_id,
                TaskRow.kind == "train",
                TaskRow.state.in_(PENDING_NAMES),
            )
            .distinct()
        )
        with read_connection(self._engine) as connection:
            return tuple(sorted(set(connection.scalars(references)) - {""}))


def _require_kept(session: Session, row: RoundRow) -> None:
    """Raise NotFound if a round's model was dropped, naming the models that are kept."""
    if not row.model_dropped:
        return
    numbers = [str(kept.number) for kept in session.scalars(_with_model(row.run_id))]
    raise NotFound(
        f"the model of run {row.run_id!r} after round {row.number} is no longer kept; "
        f"kept are those after rounds {', '.join(numbers)}"
    )


@dataclass(frozen=True, slots=True)
class _OpenTask:
    """A task at work, or one whose result no recorded round has averaged."""

    round_number: int
    kind: str
    result_sha256: str


def _needed(connection: Connection, run_id: str) -> set[str]:
    """Return the content that a run needs.

    It needs the models that it keeps, the server's last state, and before the first round the model
    that it starts from. For open tasks it needs the models at which they begin, and their results.
    """
    last = last_number(connection, run_id)
    kept = _with_model(run_id).with_only_columns(RoundRow.weights_sha256)
    needed = set(connection.scalars(kept)) | _server_state(connection, run_id, last)
    if last == 0:
        start = select(RunRow.start_sha256).where(RunRow.run_id == run_id)
        needed |= set(connection.scalars(start))
    tasks = _open_tasks(connection, run_id)
    results = {task.result_sha256 for task in tasks}
    return needed | results | _models_of(connection, run_id, tasks)


def _used(connection: Connection, run_id: str) -> set[str]:
    """Return the content that a run needed until its last round was recorded."""
    last = last_number(connection, run_id)
    models = select(PhaseRow.weights_sha256).where(PhaseRow.run_id == run_id)
    updates = select(TaskRow.result_sha256).where(
        TaskRow.run_id == run_id, TaskRow.kind == "train", TaskRow.counted_round == last
    )
    contents = set(connection.scalars(models)) | set(connection.scalars(updates))
    return contents | _server_state(connection, run_id, last - 1)


def _has_ended(connection: Connection, run_id: str) -> bool:
    state = connection.scalar(select(RunRow.state).where(RunRow.run_id == run_id))
    if state is None:
        raise NotFound(f"there is no run {run_id!r}")
    return RunState[state].ended


def _open_tasks(connection: Connection, run_id: str) -> list[_OpenTask]:
    """Return a run's open tasks; a run that has ended has none."""
    if _has_ended(connection, run_id):
        return []
    last = last_number(connection, run_id)
    of_run = TaskRow.run_id == run_id
    accepted = TaskRow.state == TaskState.ACCEPTED.name
    is_open = or_(  # the database finds the rows of each term by an index
        and_(of_run, TaskRow.state.in_(PENDING_NAMES)),
        and_(of_run, TaskRow.counted_round == 0, accepted),
        and_(of_run, TaskRow.counted_round > last, accepted),
    )
    columns = (TaskRow.round_number, TaskRow.kind, TaskRow.result_sha256)
    return [_OpenTask(*row) for row in connection.execute(select(*columns).where(is_open))]


def _models_of(connection: Connection, run_id: str, tasks: Sequence[_OpenTask]) -> set[str]:
    """Return the models at which tasks begin."""
    phases = {(task.round_number, task.kind) for task in tasks}
    models = select(PhaseRow.round_number, PhaseRow.kind, PhaseRow.weights_sha256).where(
        PhaseRow.run_id == run_id, PhaseRow.round_number.in_({number for number, _ in phases})
    )
    rows = connection.execute(models).all() if phases else ()
    return {model for number, kind, model in rows if (number, kind) in phases}


def _with_model(run_id: str) -> Select[RoundRow]:
    """Select a run's rounds whose models are kept, in order."""
    return (
        select(RoundRow)
        .where(
            RoundRow.run_id == run_id,
            RoundRow.state == RoundState.COMPLETED.name,
            RoundRow.model_dropped.is_(False),
        )
        .order_by(RoundRow.number)
    )


def _server_state(connection: Connection, run_id: str, number: int) -> set[str]:
    """Return the server's state after a round, if the round recorded one."""
    record = connection.scalar(
        select(RoundRow.record).where(RoundRow.run_id == run_id, RoundRow.number == number)
    )
    state = decode_round(record).server_state if record else None
    return {state.sha256} if state else set()
