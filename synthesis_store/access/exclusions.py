"""Who is shut out of the fleet, as the coordinator said last; it holds after restarts, too.

Replicas of the store share the list, and each looks whether another one was told a newer one.
"""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import Engine, select

from hfmds.errors import HfmdsError
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.revocation_gate import Gate
from hfmds.storage.database import looking, transaction
from hfmds.wire.conversions.fleet_calls import decode_exclusions, encode_exclusions
from synthesis_store.tables import ExclusionsRow

log = logging.getLogger(__name__)

_THE_LIST = 1  # id of the only row in its table
_LOOK_SECONDS = 0.5
_VERSION = select(ExclusionsRow.version).where(ExclusionsRow.id == _THE_LIST)
_RECORD = select(ExclusionsRow.record).where(ExclusionsRow.id == _THE_LIST)


class ExclusionRecords:
    """The list in the database, and the gate that is kept as it says. Methods block."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._known = ""
        self.look()

    def version(self) -> str:
        """Names the list that is kept; empty: none was ever told."""
        with looking(self._engine) as connection:
            return connection.scalar(_VERSION) or ""

    def replace(self, version: str, exclusions: Exclusions) -> None:
        """Keep another list, and act on it."""
        record = encode_exclusions(exclusions)
        with transaction(self._engine) as session:
            session.merge(ExclusionsRow(id=_THE_LIST, version=version, record=record))
        self._gate.replace(exclusions)
        self._known = version

    def look(self) -> None:
        """Act on what another replica was told, or this one before it was started."""
        version = self.version()
        if version != self._known:
            with looking(self._engine) as connection:
                record = connection.scalar(_RECORD)
            self._gate.replace(decode_exclusions(record or b""))
            self._known = version

    async def keep_looking(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.look)
            except HfmdsError as error:
                log.debug("who is shut out cannot be read: %s", error)
            except Exception:  # this must not end: revoked devices would stay in
                log.exception("unexpected error")
