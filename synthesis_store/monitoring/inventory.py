"""What the store has, looked up when it is asked for: every replica says the same.

Cheap enough for every scrape: what has not changed is not read again, and the size of all content,
which takes a look at every row, is up to five minutes old.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Engine, func, select, union
from sqlalchemy.orm import Session

from hfmds.domain.pools import PoolState, Snapshot
from hfmds.storage.database import reading
from hfmds.wire.conversions.records import decode_snapshot
from synthesis_store.events import StoreEventKind
from synthesis_store.tables import (
    BatchRow,
    PoolRow,
    RunReferenceRow,
    ShardRow,
    SnapshotRow,
    StoreEventRow,
)

MOST_RUNS = 20  # whose newest snapshots are told: those that sealed one last
_CONTENT_EVERY = timedelta(minutes=5)  # 0.6 s of a core for 100,000 shards


@dataclass(frozen=True, slots=True)
class Stock:
    """What there is at one moment."""

    pools: Mapping[PoolState, int] = field(default_factory=lambda: dict.fromkeys(PoolState, 0))
    halted_pools: int = 0  # ever, also of runs that are gone
    content_bytes: int = 0
    newest: tuple[Snapshot, ...] = ()  # of each run that is not released


class Stocktaking:
    """Looks into the database of one store; may be asked by several threads."""

    def __init__(self, engine: Engine, log_id: str, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._log_id = log_id
        self._now = now
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}  # the newest ones by id; they never change
        self._halted = (0, 0)  # pools, in the event log up to this number
        self._content: tuple[datetime, int] | None = None

    def __call__(self) -> Stock:
        """Take stock; Unavailable while the database is away."""
        with self._lock, reading(self._engine) as session:
            return Stock(
                _pools(session),
                self._halted_pools(session),
                self._content_bytes(session),
                self._newest(session),
            )

    def _halted_pools(self, session: Session) -> int:
        """Counted in the log, which only grows: rows of pools leave with their runs."""
        counted, up_to = self._halted
        of_log = select(func.max(StoreEventRow.sequence)).filter_by(log_id=self._log_id)
        end = session.scalar(of_log) or 0
        since = (
            select(func.count())
            .select_from(StoreEventRow)
            .filter_by(log_id=self._log_id, kind=StoreEventKind.POOL_HALTED.value)
            .where(StoreEventRow.sequence > up_to, StoreEventRow.sequence <= end)
        )
        if end > up_to:
            self._halted = counted + (session.scalar(since) or 0), end
        return self._halted[0]

    def _content_bytes(self, session: Session) -> int:
        now = self._now()
        if self._content is None or now - self._content[0] >= _CONTENT_EVERY:
            self._content = now, _content_bytes(session)
        return self._content[1]

    def _newest(self, session: Session) -> tuple[Snapshot, ...]:
        newest = func.max(SnapshotRow.number)
        of_runs = (
            select(newest)
            .join(PoolRow, SnapshotRow.pool_id == PoolRow.pool_id)
            .join(RunReferenceRow, PoolRow.run_number == RunReferenceRow.number)
            .where(~RunReferenceRow.released)
            .group_by(PoolRow.run_number)
            .order_by(newest.desc())
            .limit(MOST_RUNS)
        )
        # By their ids: SQLite gives the number of a snapshot that was collected to the next one.
        query = select(SnapshotRow.snapshot_id).where(SnapshotRow.number.in_(of_runs))
        names = list(session.scalars(query.order_by(SnapshotRow.number.desc())))
        unknown = [name for name in names if name not in self._snapshots]
        rows = select(SnapshotRow).where(SnapshotRow.snapshot_id.in_(unknown))
        found = {row.snapshot_id: decode_snapshot(row.description) for row in session.scalars(rows)}
        known = self._snapshots | found
        self._snapshots = {name: known[name] for name in names}
        return tuple(self._snapshots.values())


def _pools(session: Session) -> dict[PoolState, int]:
    states = select(PoolRow.state, func.count().label("pools")).group_by(PoolRow.state)
    counts = {row.state: row.pools for row in session.execute(states)}
    return {state: counts.get(state.name, 0) for state in PoolState}


def _content_bytes(session: Session) -> int:
    batch = select(BatchRow.sha256, BatchRow.size_bytes).join(PoolRow)
    content = union(
        batch.where(PoolRow.state == PoolState.OPEN.name),
        select(ShardRow.sha256, ShardRow.size_bytes),
    ).subquery()
    return int(session.scalar(select(func.sum(content.c.size_bytes))) or 0)
