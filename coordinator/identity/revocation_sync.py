"""Who is shut out is kept out here at once, and at the store within seconds.

Every coordinator looks into the books, so that it also hears what another one has written, and
tells the store. The store is asked every few seconds which list it has, so that it gets the newest
also after it, or this coordinator, was away.
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

_LOOK_SECONDS = 0.5
_ASK_SECONDS = 2.0


class Guarded(Protocol):
    """Another server of the fleet that has a gate: the synthesis store."""

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        """Say who is shut out, or only which list is the newest; which one it has then."""


class Lookout:
    """Keeps gates as the books say."""

    def __init__(
        self,
        fleet: FleetRecords,
        members: Members,
        tokens: Tokens,
        gate: Gate,
        store: Guarded,
        dismiss: Callable[[str], Awaitable[None]],
    ) -> None:
        """`dismiss` has a round wait no longer for a device."""
        self.token_gate = Gate()  # of the port for tokens
        self._fleet = fleet
        self._members = members
        self._tokens = tokens
        self._gate = gate
        self._store = store
        self._dismiss = dismiss
        self._known_changes = 0
        self._version = Exclusions().version
        self._news = asyncio.Event()
        self._one_looks = threading.Lock()  # else an older list could replace a newer one

    async def heed(self, device_id: str = "") -> None:
        """Act on a change that was just written, of a device or of a certificate."""
        await asyncio.to_thread(self.look)
        self._news.set()
        if device_id:
            await self._dismiss(device_id)

    def look(self) -> None:
        """Into the books; blocks."""
        with self._one_looks:
            changes = self._fleet.changes()
            if changes != self._known_changes:
                exclusions = self._members.exclusions()
                self._version = exclusions.version
                self._gate.replace(exclusions)
                self.token_gate.replace(Exclusions(serials=self._tokens.revoked()))
                self._known_changes = changes  # of before: what came meanwhile is looked up again

    async def tell(self) -> None:
        """The store, if it has another list. Where nobody was ever shut out, there is none.

        Who cannot read the books says nothing: another coordinator may know better.
        """
        await asyncio.to_thread(self.look)
        if not self._known_changes:
            return
        if await self._store.set_exclusions(self._version) != self._version:
            exclusions = self._gate.exclusions
            await self._store.set_exclusions(exclusions.version, exclusions)
            log.info("the store was told who is shut out")

    @asynccontextmanager
    async def looking_out(self) -> AsyncIterator[None]:
        """Inside, gates are kept as the books say."""
        await asyncio.to_thread(self.look)
        tasks = [asyncio.create_task(self._keep_looking()), asyncio.create_task(self._keep_on())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_looking(self) -> None:
        away = False
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            before = self._known_changes
            away = await self._try(lambda: asyncio.to_thread(self.look), "read", away)
            if self._known_changes != before:
                self._news.set()

    async def _keep_on(self) -> None:
        away = False
        while True:
            self._news.clear()
            away = await self._try(self.tell, "told to the store", away)
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _try(self, act: Callable[[], Awaitable[None]], what: str, away: bool) -> bool:
        """Whether it could not be done; said once."""
        try:
            await act()
        except HfmdsError as error:
            if not away:
                log.warning("who is shut out cannot be %s, trying again: %s", what, error)
            return True
        except Exception:  # this task must not end: revoked devices would stay in
            log.exception("unexpected error")
            return True
        return False
