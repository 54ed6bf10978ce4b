"""The store's event log (`hfmds.storage.event_log`): the history of pools, snapshots and content.

The log names devices by pseudonym only. Nobody can change the log, so a device's id could never
be removed from it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from hfmds.event_chain import Event
from hfmds.storage.database import read_session
from hfmds.storage.event_log import add_event, read_events
from synthesis_store.tables import StoreEventRow

STORE = "store"
"""The actor of events that the store causes by itself."""


class StoreEventKind(enum.StrEnum):
    """The kinds of events. A log may also have kinds of a later version."""

    POOL_OPENED = "pool-opened"
    POOL_SEALED = "pool-sealed"
    POOL_HALTED = "pool-halted"
    POOL_ABANDONED = "pool-abandoned"
    BATCHES_REFUSED = "batches-refused"
    BATCH_LOST = "batch-lost"
    RUN_RELEASED = "run-released"
    SNAPSHOT_COLLECTED = "snapshot-collected"
    CONTENT_ERASED = "content-erased"
    DEVICE_WITHDRAWN = "device-withdrawn"
    WITHDRAWAL_COMPLETE = "withdrawal-complete"


class StoreEvents:
    """The event log of one store."""

    def __init__(self, engine: Engine, log_id: str, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now
        self.log_id = log_id

    def append(self, session: Session, kind: StoreEventKind, **details: object) -> None:
        """Add an event in the transaction of the change that it describes."""
        at_seconds = self._now().timestamp()
        connection = session.connection()
        add_event(connection, StoreEventRow, self.log_id, at_seconds, kind.value, details)

    def list(self, after: int, limit: int) -> list[Event]:
        """Return at most `limit` events after a sequence number, in order."""
        with read_session(self._engine) as session:
            return read_events(session, StoreEventRow, self.log_id, after, limit)
