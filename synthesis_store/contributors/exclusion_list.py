"""The coordinator's list of excluded devices and certificates, as this store last received it.

The list is in the database, so it also holds after a restart. Each replica looks every half second
whether another replica has received a newer list.
"""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import Engine, select

from hfmds.errors import HfmdsError
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.revocation_gate import Gate
from hfmds.storage.database import read_session, write_session
from hfmds.wire.conversions.fleet_calls import decode_exclusions, encode_exclusions
from synthesis_store.tables import ExclusionsRow

log = logging.getLogger(__name__)

_THE_LIST = 1  # the id of the only row
_LOOK_SECONDS = 0.5


class ExclusionList:
    """The list in the database, applied to the gate of this server. Methods block."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._applied = ""
        self.refresh()

    def version(self) -> str:
        """Return the version of the list in the database; empty if there is none."""
        with read_session(self._engine) as session:
            query = select(ExclusionsRow.version).where(ExclusionsRow.id == _THE_LIST)
            return session.scalar(query) or ""

    def replace(self, version: str, exclusions: Exclusions) -> None:
        """Store a newer list and apply it."""
        record = encode_exclusions(exclusions)
        with write_session(self._engine) as session:
            session.merge(ExclusionsRow(id=_THE_LIST, version=version, record=record))
        self._gate.replace(exclusions)
        self._applied = version

    def refresh(self) -> None:
        """Apply the list in the database if this server does not know it."""
        if self.version() == self._applied:
            return
        with read_session(self._engine) as session:
            row = session.get_one(ExclusionsRow, _THE_LIST)
        self._gate.replace(decode_exclusions(row.record))
        self._applied = row.version

    async def keep_fresh(self) -> None:
        """Refresh every half second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.refresh)
            except HfmdsError as error:
                log.debug("the exclusion list cannot be read: %s", error)
            except Exception:  # the loop must go on, or revoked devices would get in
                log.exception("unexpected error")
