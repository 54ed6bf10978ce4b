"""Deletes runs: their content, then all rows but the log. By the one who leads, in the background.

A run that is to go is marked first; whoever leads then finds it, also after a restart, and repeats
what was cut off.
"""

from __future__ import annotations

import logging
import threading

from coordinator.parts import Parts
from hfmds.errors import HfmdsError
from hfmds.service.telemetry import log_context

log = logging.getLogger(__name__)


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
                self._parts.contents.remove(run_id)
                self._parts.runs.finish_deletion(run_id, self._parts.clock())
                log.info("run deleted")
            except (HfmdsError, OSError) as error:
                log.warning("the run is not deleted yet: %s", error)
            finally:
                with self._lock:
                    self._removing.discard(run_id)
