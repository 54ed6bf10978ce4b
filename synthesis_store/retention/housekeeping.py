"""What the store does without being asked: sealing by quorum or deadline, collecting, taking notes.

Every replica does it; what another one has done already changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hfmds.errors import HfmdsError
from synthesis_store.pools.pools import Pools

log = logging.getLogger(__name__)

_CLEAR_EVERY_SECONDS = 3600.0  # at least, also where snapshots are collected by hand


class Caretaker:
    """Looks after the pools until it is cancelled."""

    def __init__(
        self, pools: Pools, look_every_seconds: float, collect_every_seconds: float
    ) -> None:
        self._pools = pools
        self._look_every_seconds = look_every_seconds
        self._collect_every_seconds = collect_every_seconds

    async def tend(self) -> None:
        """Look again and again; an error is told, and does not end it."""
        loop = asyncio.get_running_loop()
        collect_every = self._collect_every_seconds
        clear_every = min(collect_every or _CLEAR_EVERY_SECONDS, _CLEAR_EVERY_SECONDS)
        collected_at = cleared_at = loop.time()
        await self._do("removing copies", self._pools.contents.forget_copies)
        while True:
            await asyncio.sleep(self._look_every_seconds)
            await self._do("sealing", self._pools.seal_due)
            await self._do("notes of refusals", self._pools.note_refusals)
            if collect_every and loop.time() - collected_at >= collect_every:
                await self._do("collecting", self._pools.collect)
                collected_at = loop.time()
            if loop.time() - cleared_at >= clear_every:
                await self._do("clearing away", self._pools.clear_left_over)
                await self._do("removing copies", self._pools.contents.forget_copies)
                cleared_at = loop.time()

    async def _do(self, what: str, work: Callable[[], object]) -> None:
        try:
            await asyncio.to_thread(work)
        except (HfmdsError, OSError) as error:
            log.warning("%s failed, and is tried again: %s", what, error)
        except Exception:  # this must not end: no pool would be sealed by itself any more
            log.exception("%s failed, and is tried again", what)
