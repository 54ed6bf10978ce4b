"""What the store does by itself: seals pools that are due, collects snapshots, cleans up.

Every replica does it. What another replica has done already changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hfmds.errors import HfmdsError
from synthesis_store.pools.pools import Pools
from synthesis_store.retention.data_retention import DataRetention
from synthesis_store.settings import StoreSettings
from synthesis_store.snapshots.sealing import Sealing

log = logging.getLogger(__name__)

_CLEAN_EVERY_SECONDS = 3600.0  # at least, also where operators collect snapshots by hand


class Housekeeper:
    """Does the store's own work until it is cancelled."""

    def __init__(
        self, sealing: Sealing, pools: Pools, retention: DataRetention, settings: StoreSettings
    ) -> None:
        self._sealing = sealing
        self._pools = pools
        self._retention = retention
        self._settings = settings

    async def work(self) -> None:
        """Look for work every few seconds. After an error, log it and go on."""
        loop = asyncio.get_running_loop()
        collect_every = self._settings.collect_every_seconds
        clean_every = min(
            collect_every or _CLEAN_EVERY_SECONDS,
            self._settings.orphan_grace_seconds,
            _CLEAN_EVERY_SECONDS,
        )
        collected_at = loop.time()
        await self._try("cleaning up", self._retention.clean_up)
        cleaned_at = loop.time()
        while True:
            await asyncio.sleep(self._settings.look_every_seconds)
            await self._try("sealing", self._sealing.seal_due)
            await self._try("writing refusals", self._pools.refused_batches.write)
            if collect_every and loop.time() - collected_at >= collect_every:
                await self._try("collecting", self._retention.collect)
                collected_at = loop.time()
            if loop.time() - cleaned_at >= clean_every:
                await self._try("cleaning up", self._retention.clean_up)
                cleaned_at = loop.time()

    async def _try(self, what: str, task: Callable[[], object]) -> None:
        try:
            await asyncio.to_thread(task)
        except (HfmdsError, OSError) as error:
            log.warning("%s failed, the store tries again: %s", what, error)
        except Exception:  # the loop must go on, or no pool would seal itself
            log.exception("%s failed, the store tries again", what)
