"""Applies revocations on this server at once, and sends them to the store within seconds.

Every coordinator reads the database, so it also applies what another coordinator wrote. It asks the
store every few seconds which list the store has. So the store gets the newest list even after the
store or this coordinator was away.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from coordinator.identity.fleet_records import FleetRecords
from coordinator.identity.members import Members
from coordinator.identity.tokens import Tokens
from hfmds.errors import HfmdsError
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.revocation_gate import Gate

log = logging.getLogger(__name__)

_READ_EVERY_SECONDS = 0.5
_PUSH_EVERY_SECONDS = 2.0


class GuardedServer(Protocol):
    """Another server of the fleet that has a gate: the synthesis store."""

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        """Send the list, or only its version; return the version that the server has then."""


class RevocationSync:
    """Keeps the gates of this server and of the store as the database says."""

    def __init__(
        self,
        fleet: FleetRecords,
        members: Members,
        tokens: Tokens,
        gate: Gate,
        store: GuardedServer,
    ) -> None:
        self.token_gate = Gate()  # of the token port
        self._fleet = fleet
        self._members = members
        self._tokens = tokens
        self._gate = gate
        self._store = store
        self._known_changes = 0
        self._version = Exclusions().version
        self._changed = asyncio.Event()
        self._reading = threading.Lock()  # else an older list could replace a newer one

    async def apply(self) -> None:
        """Apply a change that was just written."""
        await asyncio.to_thread(self.refresh)
        self._changed.set()

    def refresh(self) -> None:
        """Read the database, and update the gates of this server; blocks."""
        with self._reading:
            changes = self._fleet.changes()
            if changes != self._known_changes:
                exclusions = self._members.exclusions()
                self._version = exclusions.version
                self._gate.replace(exclusions)
                self.token_gate.replace(Exclusions(serials=self._tokens.revoked()))
                # The count from before the reading: a later change causes another reading.
                self._known_changes = changes

    async def push_to_store(self) -> None:
        """Send the list to the store if the store has another one.

        A fleet that never excluded anybody has no list. A coordinator that cannot read the database
        sends nothing, because another coordinator may know better.
        """
        await asyncio.to_thread(self.refresh)
        if not self._known_changes:
            return
        if await self._store.set_exclusions(self._version) != self._version:
            exclusions = self._gate.exclusions
            await self._store.set_exclusions(exclusions.version, exclusions)
            log.info("the store has the newest revocations")

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Inside the block, keep the gates up to date."""
        await asyncio.to_thread(self.refresh)
        tasks = [
            asyncio.create_task(self._refresh_forever()),
            asyncio.create_task(self._push_forever()),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh_forever(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(_READ_EVERY_SECONDS)
            changes_before = self._known_changes
            failed = await self._try(lambda: asyncio.to_thread(self.refresh), "read", failed)
            if self._known_changes != changes_before:
                self._changed.set()

    async def _push_forever(self) -> None:
        failed = False
        while True:
            self._changed.clear()
            failed = await self._try(self.push_to_store, "send", failed)
            try:
                async with asyncio.timeout(_PUSH_EVERY_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _try(self, act: Callable[[], Awaitable[None]], verb: str, failed: bool) -> bool:
        """Return whether the act failed. Log only the first of several failures."""
        try:
            await act()
        except HfmdsError as error:
            if not failed:
                log.warning("cannot %s the revocations, trying again: %s", verb, error)
            return True
        except Exception:  # the task must not end, or revoked devices would stay in
            log.exception("unexpected error")
            return True
        return False
