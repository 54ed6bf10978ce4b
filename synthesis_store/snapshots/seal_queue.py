"""Seals that go on whoever waits for them.

Sealing a large pool takes minutes, and whoever asked may have hung up by then and ask again: it
joins the seal that is under way. In a thread of its own: those of other calls are few.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from hfmds.domain.pools import Contribution
from synthesis_store.snapshots.snapshot_records import Sealed

log = logging.getLogger(__name__)

_Key = tuple[str, frozenset[Contribution]]


class Seals:
    """Has pools sealed, one after the other. For one event loop."""

    def __init__(self, seal: Callable[[str, Iterable[Contribution]], Sealed]) -> None:
        self._seal = seal
        self._thread = ThreadPoolExecutor(1, "sealing")
        self._under_way: dict[_Key, asyncio.Future[Sealed]] = {}

    async def seal(self, pool_id: str, named: Iterable[Contribution]) -> Sealed:
        """Have the pool sealed, or wait for who does it; cancelling this ends the waiting only."""
        key = pool_id, frozenset(named)
        if key not in self._under_way:
            run = contextvars.copy_context().run  # so that what it logs names the call
            sealing = asyncio.get_running_loop().run_in_executor(
                self._thread, run, self._seal, *key
            )
            self._under_way[key] = sealing
            sealing.add_done_callback(lambda done: self._over(key, done))
        return await asyncio.shield(self._under_way[key])

    async def close(self) -> None:
        """Begin no more seals; on return the one that was under way is over."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    def _over(self, key: _Key, done: asyncio.Future[Sealed]) -> None:
        del self._under_way[key]
        if not done.cancelled() and (error := done.exception()):
            log.warning("pool %s is not sealed: %s", key[0], error)
