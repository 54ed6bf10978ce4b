"""Seals pools one after the other, independently of the calls that ask for it.

Sealing a large pool takes minutes. The caller may hang up in that time and ask again: then it joins
the seal that is under way. Seals have a thread of their own, because there are few for other calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from hfmds.domain.pools import Contribution
from synthesis_store.snapshots.sealing import Sealing
from synthesis_store.snapshots.snapshot_records import SealedPool

log = logging.getLogger(__name__)

_Key = tuple[str, frozenset[Contribution]]


class SealQueue:
    """Runs seals in one thread. For one event loop."""

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing
        self._thread = ThreadPoolExecutor(1, "sealing")
        self._under_way: dict[_Key, asyncio.Future[SealedPool]] = {}

    async def seal(self, pool_id: str, named: Iterable[Contribution]) -> SealedPool:
        """Seal the pool, or join the seal that is under way.

        If the caller is cancelled, the seal goes on.
        """
        key = pool_id, frozenset(named)
        if key not in self._under_way:
            run = contextvars.copy_context().run  # log records of the seal name the call
            seal = asyncio.get_running_loop().run_in_executor(
                self._thread, run, self._sealing.seal, *key
            )
            self._under_way[key] = seal
            seal.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(self._under_way[key])

    async def close(self) -> None:
        """Start no more seals, and return when the one under way is over or given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.gather(
            asyncio.to_thread(self._sealing.stop),
            *self._under_way.values(),
            return_exceptions=True,
        )

    def _forget(self, key: _Key, done: asyncio.Future[SealedPool]) -> None:
        del self._under_way[key]
        if not done.cancelled() and (error := done.exception()):
            log.warning("pool %s is not sealed: %s", key[0], error)
