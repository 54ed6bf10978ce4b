"""The fleet's own row, and the transactions, the clock and the event log of this package.

The first coordinator writes the row. All coordinators of the database share it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from coordinator.records.events import append_fleet_event
from coordinator.records.tables import FleetRow
from hfmds.domain.administration.events import EventKind
from hfmds.storage.database import read_connection, read_session, write_session

_THE_FLEET = 1  # id of the only row in its table
_CHANGES = select(FleetRow.changes).where(FleetRow.fleet_id == _THE_FLEET)


class FleetRecords:
    """The fleet's row and its event log. Methods block: call them in a thread."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self.now = clock
        self.read_session = partial(read_session, engine)
        self.write_session = partial(write_session, engine)  # one at a time, over all coordinators
        with write_session(engine) as session:
            row = session.get(FleetRow, _THE_FLEET)
            if row is None:
                row = FleetRow(
                    fleet_id=_THE_FLEET,
                    log_id=f"fleet.{secrets.token_hex(8)}",
                    nonce_key=secrets.token_bytes(32),
                )
                session.add(row)
            self.nonce_key = row.nonce_key
            self.log_id = row.log_id

    def append(self, session: Session, kind: EventKind, **details: object) -> None:
        """Within a transaction: write an event to the fleet's log."""
        append_fleet_event(session.connection(), self.log_id, kind, self.now(), **details)

    def note_change(self, session: Session) -> None:
        """Within a transaction that changes the exclusions: make all coordinators read them."""
        of_fleet = update(FleetRow).where(FleetRow.fleet_id == _THE_FLEET)
        session.execute(of_fleet.values(changes=FleetRow.changes + 1))

    def changes(self) -> int:
        """Return how many times the exclusions have changed."""
        with read_connection(self._engine) as connection:
            return int(connection.scalar(_CHANGES) or 0)
