"""The drivers of the runs, on the coordinator that leads.

Each run that has not ended has a driver there, in its own thread. A coordinator that begins to
lead starts the drivers of all these runs, so an interrupted run goes on by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from coordinator.monitoring.metrics import Metrics
from coordinator.records.runs import RunRecord
from coordinator.replicas.leadership import Term
from coordinator.replicas.notices import Notices, Topic
from coordinator.runs.content_deletion import Deletion
from coordinator.runs.driver import RunDriver
from coordinator.runs.run_control import DriverRecords
from hfmds.domain.runs import Progress, RunState
from hfmds.errors import NotFound
from hfmds.service.monitoring.logs import log_context

log = logging.getLogger(__name__)


class Drivers:
    """Starts, wakes and stops the drivers of runs. Thread-safe."""

    def __init__(
        self,
        records: DriverRecords,
        new_driver: Callable[[RunRecord, DriverRecords], RunDriver],
        deletion: Deletion,
        notices: Notices,
        metrics: Metrics,
    ) -> None:
        self._records = records
        self._new_driver = new_driver
        self._deletion = deletion
        self._notices = notices
        self._metrics = metrics
        self._leading: DriverRecords | None = None  # while this coordinator leads
        self._term: Term | None = None
        self._drivers: dict[str, RunDriver] = {}
        self._threads: dict[RunDriver, threading.Thread] = {}  # also of those told to stop
        self._lock = threading.RLock()
        self._closing = False

    def show_ended_runs(self) -> None:
        """Show the metrics of runs that have ended, which get no driver."""
        for run in reversed(self._records.runs.list()):
            if run.state.ended:
                if run.last_round:
                    best = self._records.rounds.get(run.run_id, run.best_round)
                    self._metrics.show_run(run.run_id, run.last_round, best)
                self._metrics.run_ended(run.run_id)

    # --- leading --------------------------------------------------------------------------------

    def lead(self, term: Term | None = None) -> None:
        """Drive every run that has not ended; without a term, as the only coordinator.

        A repeated call adds the drivers that are missing.
        """
        with self._lock:
            if term and term.over:
                return
            if self._leading is None or term is not self._term:
                self.follow()
                self._term = term
                self._leading = DriverRecords.on(term.engine) if term else self._records
                self._deletion.begin_sweeping(self._leading)
        for run in self._records.runs.active():
            if self.drive(run):
                with log_context(run=run.run_id):
                    log.info("run goes on", extra={"after_round": run.completed_rounds})
        for run_id in self._records.runs.deleting():
            self._delete(run_id)

    def follow(self) -> None:
        """Leave the driving to another coordinator. Returns at once."""
        with self._lock:
            drivers, self._drivers = self._drivers, {}
            self._leading = self._term = None
        for driver in drivers.values():
            driver.control.stop()

    def stop(self) -> None:
        """Tell all drivers to stop. Returns at once."""
        self._closing = True
        with self._lock:
            for driver in self._threads:
                driver.control.stop()

    def close(self, timeout_seconds: float) -> None:
        """Stop all drivers. Recorded work stays."""
        self.stop()
        give_up_at = time.monotonic() + timeout_seconds
        with self._lock:
            threads = tuple(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    # --- single runs ----------------------------------------------------------------------------

    def drive(self, run: RunRecord) -> bool:
        """Start the run's driver if this coordinator leads. Returns False if it has one."""
        with self._lock:
            if self._leading is None or self._closing or run.run_id in self._drivers:
                return False
            driver = self._drivers[run.run_id] = self._new_driver(run, self._leading)
            thread = threading.Thread(
                target=self._run, args=(driver,), name=f"run-{run.run_id}", daemon=True
            )
            self._threads[driver] = thread
        thread.start()
        return True

    def drives(self, run_id: str) -> bool:
        """Whether this coordinator drives the run."""
        return run_id in self._drivers

    def progress(self, run_id: str) -> Progress | None:
        """What a run does now, if it is driven here."""
        driver = self._drivers.get(run_id)
        return driver.control.progress if driver else None

    def wake(self, run_ids: tuple[str, ...] = ()) -> None:
        """Have the drivers of these runs look again, or all drivers if none is named."""
        with self._lock:
            drivers = tuple(self._drivers.values())
        if not run_ids:
            for driver in drivers:
                driver.control.wakeup.wake()
        for run_id in run_ids:
            if run_id in self._drivers:
                self._drivers[run_id].control.wakeup.wake()
            elif self._leading and self._records.runs.exists(run_id):
                run = self._records.runs.get(run_id)
                if run.state is RunState.DELETING:
                    self._delete(run_id)
                elif not run.state.ended:
                    self.drive(run)

    def _run(self, driver: RunDriver) -> None:
        try:
            driver.drive()
        finally:
            self._ended(driver)
            driver.control.notify_watchers()
            with self._lock:
                del self._threads[driver]

    def _ended(self, driver: RunDriver) -> None:
        with self._lock:
            if self._drivers.get(driver.run_id) is not driver:  # another coordinator drives now
                return
            del self._drivers[driver.run_id]
            leading = self._leading
        try:
            state = self._records.runs.state(driver.run_id)
        except NotFound:  # it was deleted
            return
        if state is RunState.DELETING:
            self._delete(driver.run_id)
        elif state.ended:
            self._metrics.run_ended(driver.run_id)
            self._notices.post(Topic.WORK)  # devices that wait for this run only may go
            if leading:
                self._deletion.sweep(leading, driver.run_id)

    def _delete(self, run_id: str) -> None:
        """Begin to delete a run that is marked for it, unless its driver is still at work."""
        with self._lock:
            if self._leading and run_id not in self._drivers:
                self._deletion.begin(self._leading, run_id)
