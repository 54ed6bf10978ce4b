"""The inventory: what the database says the store has. All replicas see the same.

Reading it is cheap. The reader remembers snapshots and counts only new events. It sums up the
content every five minutes, because that reads all rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from hfmds.domain.pools import PoolState, Snapshot
from hfmds.storage.database import read_session
from hfmds.wire.conversions.records import decode_snapshot
from synthesis_store.content.orphans import needed_content
from synthesis_store.events import StoreEventKind
from synthesis_store.tables import PoolRow, RunReferenceRow, SnapshotRow, StoreEventRow

MAX_RUNS = 20
"""The inventory has the newest snapshots of this many runs: those that sealed last."""

_CONTENT_EVERY = timedelta(minutes=5)  # it takes 0.6 s of a core for 100,000 shards


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the store has at one moment."""

    pools: Mapping[PoolState, int] = field(default_factory=lambda: dict.fromkeys(PoolState, 0))
    halted_pools: int = 0  # ever, also of runs that are gone
    content_bytes: int = 0
    newest: tuple[Snapshot, ...] = ()  # of each run that is not released


class InventoryReader:
    """Reads the inventory of one store. Thread-safe."""

    def __init__(self, engine: Engine, log_id: str, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._log_id = log_id
        self._now = now
        self._lock = threading.Lock()
        self._snapshots: dict[str, Snapshot] = {}  # the newest ones by id; they never change
        self._halted = (0, 0)  # the number of halted pools up to this event
        self._content: tuple[datetime, int] | None = None

    def read(self) -> Inventory:
        """Read the inventory, or raise Unavailable if the database is away."""
        with self._lock, read_session(self._engine) as session:
            return Inventory(
                _pools(session),
                self._halted_pools(session),
                self._content_bytes(session),
                self._newest(session),
            )

    def _halted_pools(self, session: Session) -> int:
        """Count the halted pools in the event log. It only grows; rows of pools go with runs."""
        count, counted_to = self._halted
        last_event = select(func.max(StoreEventRow.sequence)).filter_by(log_id=self._log_id)
        end = session.scalar(last_event) or 0
        new_events = (
            select(func.count())
            .select_from(StoreEventRow)
            .filter_by(log_id=self._log_id, kind=StoreEventKind.POOL_HALTED.value)
            .where(StoreEventRow.sequence > counted_to, StoreEventRow.sequence <= end)
        )
        if end > counted_to:
            self._halted = count + (session.scalar(new_events) or 0), end
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
            .limit(MAX_RUNS)
        )
        # By id: SQLite may give the number of a collected snapshot to the next one.
        query = select(SnapshotRow.snapshot_id).where(SnapshotRow.number.in_(of_runs))
        ids = list(session.scalars(query.order_by(SnapshotRow.number.desc())))
        unknown = [snapshot_id for snapshot_id in ids if snapshot_id not in self._snapshots]
        rows = session.scalars(select(SnapshotRow).where(SnapshotRow.snapshot_id.in_(unknown)))
        known = self._snapshots | {
            row.snapshot_id: decode_snapshot(row.description) for row in rows
        }
        self._snapshots = {snapshot_id: known[snapshot_id] for snapshot_id in ids}
        return tuple(self._snapshots.values())


def _pools(session: Session) -> dict[PoolState, int]:
    query = select(PoolRow.state, func.count().label("pools")).group_by(PoolRow.state)
    counts = {row.state: row.pools for row in session.execute(query)}
    return {state: counts.get(state.name, 0) for state in PoolState}


def _content_bytes(session: Session) -> int:
    content = needed_content().subquery()
    return int(session.scalar(select(func.sum(content.c.size_bytes))) or 0)
