"""Deletes runs: what the store keeps for them, their content, then all rows but the log.

By the one who leads, in the background. A run that is to go is marked first; whoever leads then
finds it, also after a restart, and repeats what was cut off.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from coordinator.parts import Parts
from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.telemetry import log_context

log = logging.getLogger(__name__)

_STORE_SECONDS = 60.0
_AGAIN_SECONDS = 0.5


class Deletion:
    """Removes runs that are marked. Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._removing: set[str] = set()

    def begin(self, run_id: str) -> None:
        """Remove a marked run for which nobody is at work any more. Returns at once."""
        with self._lock:
            if run_id in self._removing:
                return
            self._removing.add(run_id)
        threading.Thread(
            target=self._remove, args=(run_id,), name=f"delete-{run_id}", daemon=True
        ).start()

    def _remove(self, run_id: str) -> None:
        with log_context(run=run_id):
            try:
                # In this order: what has no row any more would never be found again.
                self._release(run_id)
                self._parts.contents.remove(run_id)
                self._parts.runs.finish_deletion(run_id, self._parts.clock())
                log.info("run deleted")
            except (HfmdsError, OSError) as error:
                log.warning("the run is not deleted yet: %s", error)
            finally:
                with self._lock:
                    self._removing.discard(run_id)

    def _release(self, run_id: str) -> None:
        """Have the synthesis store give up the run's snapshots, if its method makes any."""
        if not self._parts.runs.get(run_id).spec.recipe.method.samples_per_device:
            return
        told = False
        while not self._parts.loop.is_closed():
            call = self._parts.store.release_run(run_id)
            try:
                asyncio.run_coroutine_threadsafe(call, self._parts.loop).result(_STORE_SECONDS)
                return
            except Unavailable as error:
                if not told:
                    log.warning("the deletion waits for the synthesis store: %s", error)
                    told = True
                time.sleep(_AGAIN_SECONDS)
        raise Unavailable("the coordinator has stopped; it goes on when it is started again")
