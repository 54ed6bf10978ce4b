"""Deletes runs: what the store keeps for them, their content, then all rows but the log.

By the one who leads, in the background. A run that is to go is marked first; whoever leads then
finds it, also after a restart, and repeats what was cut off. Runs that have ended and stay are
cleared of what they do not need.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.records.runs import RunRecord, RunRecords
from coordinator.replicas.leadership import Deposed
from coordinator.runs.content import RunContents
from coordinator.runs.driver_records import DriverRecords
from coordinator.runs.leftovers import drop_leftovers
from coordinator.runs.pool_refresh import PoolStore
from hfmds.errors import HfmdsError, NotFound, Unavailable
from hfmds.service.monitoring.logs import log_context

log = logging.getLogger(__name__)

_STORE_SECONDS = 60.0
_AGAIN_SECONDS = 0.5


class Deletion:
    """Removes runs that are marked, and clears those that have ended. Thread-safe."""

    def __init__(
        self,
        contents: RunContents,
        store: PoolStore,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        """`loop` is the event loop on which the store is called."""
        self._contents = contents
        self._store = store
        self._loop = loop
        self._clock = clock
        self._lock = threading.Lock()
        self._removing: set[str] = set()
        # A run that is removed may be created anew: till then nobody clears the old one.
        self._one_by_one = threading.Lock()

    def begin(self, records: DriverRecords, run_id: str) -> None:
        """Remove a marked run that nobody works for, with the parts of one who leads.

        Returns at once.
        """
        with self._lock:
            if run_id in self._removing:
                return
            self._removing.add(run_id)
        threading.Thread(
            target=self._remove, args=(records, run_id), name=f"delete-{run_id}", daemon=True
        ).start()

    def begin_clearing(self, records: DriverRecords) -> None:
        """Clear all runs that have ended, with the parts of one who leads. Returns at once."""

        def clear_all() -> None:
            with _saying("runs are not cleared yet"):
                for run in records.runs.list():
                    if run.state.ended:
                        self.clear(records, run.run_id)

        threading.Thread(target=clear_all, name="clear", daemon=True).start()

    def clear(self, records: DriverRecords, run_id: str) -> None:
        """Free what a run that has ended does not need, with the parts of one who leads."""
        with log_context(run=run_id), self._one_by_one, _saying("the run is not cleared yet"):
            drop_leftovers(records, self._contents.of(run_id).blobs, run_id)

    def _remove(self, records: DriverRecords, run_id: str) -> None:
        with log_context(run=run_id), _saying("the run is not deleted yet"):
            try:
                run = records.runs.get(run_id)
                # In this order: what has no row any more would never be found again.
                self._release(records.runs, run)
                with self._one_by_one:
                    self._remove_content(records.runs, run)
                    records.runs.finish_deletion(run_id, self._clock())
                log.info("run deleted")
            finally:
                with self._lock:
                    self._removing.discard(run_id)

    def _release(self, runs: RunRecords, run: RunRecord) -> None:
        """Have the synthesis store give up the run's snapshots, if its method makes any."""
        if not run.spec.recipe.method.samples_per_device:
            return
        told = False
        while not self._loop.is_closed():
            runs.require_deleting(run.run_uid)
            call = self._store.release_run(run.run_id)
            try:
                asyncio.run_coroutine_threadsafe(call, self._loop).result(_STORE_SECONDS)
                return
            except Unavailable as error:
                if not told:
                    log.warning("the deletion waits for the synthesis store: %s", error)
                    told = True
                time.sleep(_AGAIN_SECONDS)
        raise Unavailable("the coordinator has stopped; it goes on when it is started again")

    def _remove_content(self, runs: RunRecords, run: RunRecord) -> None:
        """Delete all bytes of a run, asking before each blob whether it is still ours to do.

        Content knows runs by id only: somebody else may lead by now, have deleted this run, and
        have been told to create another one with its id, which may need the very same bytes.
        """
        blobs = self._contents.of(run.run_id).blobs
        for digest in tuple(blobs.digests()):
            runs.require_deleting(run.run_uid)
            blobs.delete(digest)
        runs.require_deleting(run.run_uid)
        self._contents.remove(run.run_id)


@contextmanager
def _saying(what_is_left: str) -> Iterator[None]:
    """Around work in the background that whoever leads next will find and do, if it fails."""
    try:
        yield
    except NotFound as error:
        log.info("nothing is left to do: %s", error)  # the run was deleted meanwhile
    except Deposed as error:
        log.info("this is another coordinator's to do: %s", error)
    except (HfmdsError, OSError) as error:
        log.warning("%s: %s", what_is_left, error)
