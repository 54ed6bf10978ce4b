"""Deletes content that runs no longer need, and all content of deleted runs.

A sweep follows each round, each start of a driver and the end of each run. Only the coordinator
that leads deletes. It first lists what is stored, then asks the database what is needed: a
coordinator that no longer leads is refused there, and content that comes later is not in the list.
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
from coordinator.runs.pool_refresh import PoolStore
from coordinator.runs.run_control import DriverRecords
from hfmds.errors import HfmdsError, NotFound, Unavailable
from hfmds.service.monitoring.logs import log_context
from hfmds.storage.blobs import Blobs

log = logging.getLogger(__name__)

_STORE_SECONDS = 60.0
_AGAIN_SECONDS = 0.5


def sweep(records: DriverRecords, blobs: Blobs, run_id: str) -> None:
    """Delete the content that a run no longer needs (`coordinator.records.retention`).

    The caller keeps the run from being deleted, and another run from getting its id.
    """
    stored = tuple(blobs.digests())
    with records.retention.unneeded(run_id, stored) as unneeded:
        for digest in unneeded:
            blobs.delete(digest)
    if unneeded:
        size_bytes = sum(digest.size_bytes for digest in unneeded)
        log.debug("content deleted", extra={"blobs": len(unneeded), "bytes": size_bytes})


class Deletion:
    """Deletes marked runs, and sweeps ended ones, in the background. Thread-safe.

    A run to be deleted is marked in the database. The coordinator that leads finds the mark, also
    after a restart, and repeats an interrupted deletion: first the store's snapshots, then the
    content, then all rows except the log.
    """

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
        # A run that gets the id of a removed one must not lose its content to a sweep.
        self._one_by_one = threading.Lock()

    def begin(self, records: DriverRecords, run_id: str) -> None:
        """Begin to delete a marked run that has no driver. Returns at once."""
        with self._lock:
            if run_id in self._removing:
                return
            self._removing.add(run_id)
        threading.Thread(
            target=self._remove, args=(records, run_id), name=f"delete-{run_id}", daemon=True
        ).start()

    def begin_sweeping(self, records: DriverRecords) -> None:
        """Begin to sweep all runs that have ended. Returns at once."""

        def sweep_all() -> None:
            with _logging_errors("ended runs are not swept yet"):
                for run in records.runs.list():
                    if run.state.ended:
                        self.sweep(records, run.run_id)

        threading.Thread(target=sweep_all, name="sweep", daemon=True).start()

    def sweep(self, records: DriverRecords, run_id: str) -> None:
        """Sweep a run that has ended."""
        with (
            log_context(run=run_id),
            self._one_by_one,
            _logging_errors("the run is not swept yet"),
        ):
            records.runs.state(run_id)  # raises NotFound before this opens the run's content
            sweep(records, self._contents.of(run_id).blobs, run_id)

    def _remove(self, records: DriverRecords, run_id: str) -> None:
        with log_context(run=run_id), _logging_errors("the run is not deleted yet"):
            try:
                run = records.runs.get(run_id)
                # The rows go last: without them nobody would find the rest.
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
        warned = False
        while not self._loop.is_closed():
            runs.require_deleting(run.run_uid)
            call = self._store.release_run(run.run_id)
            try:
                asyncio.run_coroutine_threadsafe(call, self._loop).result(_STORE_SECONDS)
                return
            except Unavailable as error:
                if not warned:
                    log.warning("the deletion waits for the synthesis store: %s", error)
                    warned = True
                time.sleep(_AGAIN_SECONDS)
        raise Unavailable("the coordinator has stopped; it goes on when it is started again")

    def _remove_content(self, runs: RunRecords, run: RunRecord) -> None:
        """Delete all bytes of a run, asking before each blob whether the run is still marked.

        Content knows only run ids. Another coordinator may have become the leader, deleted this run
        and created another one with its id, which may need the very same bytes.
        """
        blobs = self._contents.of(run.run_id).blobs
        for digest in tuple(blobs.digests()):
            runs.require_deleting(run.run_uid)
            blobs.delete(digest)
        runs.require_deleting(run.run_uid)
        self._contents.remove(run.run_id)


@contextmanager
def _logging_errors(unfinished: str) -> Iterator[None]:
    """Log an error of background work. The next leader finds that work and does it."""
    try:
        yield
    except NotFound as error:
        log.info("nothing is left to do: %s", error)  # the run was deleted
    except Deposed as error:
        log.info("another coordinator leads, and does this: %s", error)
    except (HfmdsError, OSError) as error:
        log.warning("%s: %s", unfinished, error)
