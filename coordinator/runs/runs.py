"""The life of runs: the domain behind AdminService.

Each run that has not ended has a driver at the coordinator that leads. Beginning to lead starts the
drivers of all such runs, so a run that was cut off goes on by itself. A coordinator that stands by
for the leader does all the rest, and tells the leader through the switchboard.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator

from coordinator.devices.wakeup import Bell
from coordinator.monitoring.live_counts import RunCensus
from coordinator.parts import Parts
from coordinator.records.events import COORDINATOR
from coordinator.records.runs import RunRecord
from coordinator.replicas.leadership import Term
from coordinator.replicas.notices import Topic
from coordinator.runs.deletion import Deletion
from coordinator.runs.driver import RunDriver
from coordinator.runs.first_model import copy_first_model
from coordinator.runs.progress_notice import news_of, progress_in
from hfmds.domain.devices import Device, require_id
from hfmds.domain.recipe import Recipe
from hfmds.domain.runs import Progress, Round, Run, RunSpec, RunState
from hfmds.errors import InvalidInput, NotFound, Unavailable
from hfmds.service.limits.open_files import OWN_FILES, open_files_allowed
from hfmds.service.monitoring.logs import log_context
from hfmds.wire.chunks import outgoing
from hfmds.wire.conversions.admin_calls import new_run_id

log = logging.getLogger(__name__)

_MAX_RUN_ID = 100  # pool ids are run ids with a nonce, the round and a mark behind
_DELETION_SECONDS = 15.0  # how long who asked for one waits for it
_LOOK_SECONDS = 0.05
_WATCH_SECONDS = 30.0  # a watcher hears at least so often that the run is alive


class Runs:
    """What operators can do. Methods that are not asynchronous block: call them in a thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._driving_parts: Parts | None = None  # while this coordinator leads
        self._term: Term | None = None
        self._drivers: dict[str, RunDriver] = {}
        self._drivers_lock = threading.RLock()
        self._stopped: list[RunDriver] = []  # whose runs are others' to drive, and who may not know
        self._progress: dict[str, Progress] = {}  # of runs that are driven elsewhere
        self._news: dict[str, Bell] = {}  # of runs that somebody has watched
        self._deletion = Deletion(parts)
        self._closing = False
        parts.registry.on_arrival(self._ring_all)
        parts.dispatch.on_result(self._resulted)
        parts.switchboard.listen(Topic.WORK, parts.dispatch.announce_to)
        parts.switchboard.listen(Topic.RUN, self._look_at)
        parts.switchboard.listen(Topic.NEWS, self._heard_news)

    def open(self) -> None:
        """Show the runs that have ended, which nobody will drive."""
        for record in reversed(self._parts.runs.list()):
            if record.state.ended:
                if record.last_round:
                    best = self._parts.runs.round(record.run_id, record.best_round)
                    self._parts.metrics.show_standing(record.run_id, record.last_round, best)
                self._parts.metrics.run_ended(record.run_id)

    def lead(self, term: Term | None = None) -> None:
        """Go on with every run that has not ended; without a term, as the only coordinator.

        Repeating it adds what is missing.
        """
        with self._drivers_lock:
            if term and term.over:
                return
            if self._driving_parts is None or term is not self._term:
                self.follow()
                self._term = term
                self._driving_parts = self._parts.on(term.engine) if term else self._parts
                self._deletion.begin_clearing(self._driving_parts)
        for record in self._parts.runs.active():
            if self._drive(record):
                with log_context(run=record.run_id):
                    log.info("run goes on", extra={"after_round": record.completed_rounds})
        for run_id in self._parts.runs.deleting():
            self._clear_away(run_id)

    def follow(self) -> None:
        """Leave the driving to another coordinator. Returns at once."""
        with self._drivers_lock:
            self._stopped = [*filter(RunDriver.is_alive, self._stopped), *self._drivers.values()]
            self._drivers = {}
            self._driving_parts = self._term = None
        for driver in self._stopped:
            driver.stop()

    def leave_off(self) -> None:
        """Begin to stop: drivers leave off and watchers are sent away. Returns at once."""
        self._closing = True
        for driver in self._driving():
            driver.stop()
        self._heard_news(())

    def close(self, timeout_seconds: float) -> None:
        """Stop driving; nothing is lost."""
        self.leave_off()
        give_up_at = time.monotonic() + timeout_seconds
        for driver in (*self._driving(), *self._stopped):
            driver.join(max(0.0, give_up_at - time.monotonic()))

    def create(self, run_id: str, spec: RunSpec, by: str = COORDINATOR) -> Run:
        """Add a run and start it, or find the same one."""
        run_id = require_id(run_id, "run_id") if run_id else new_run_id(spec)
        if len(run_id) > _MAX_RUN_ID:
            raise InvalidInput(f"run_id is {len(run_id)} characters long; at most {_MAX_RUN_ID}")
        self._require_size(spec.recipe)
        _require_open_files(spec.recipe.cohort_size)
        self._parts.held_out.check(spec)
        start = copy_first_model(
            self._parts.runs, self._parts.contents, self._parts.learning, run_id, spec
        )
        record, is_new = self._parts.runs.create(run_id, spec, self._parts.clock(), by, start)
        if is_new:
            with log_context(run=run_id):
                log.info("run created", extra={"method": spec.recipe.method.name})
            self._drive(record)
            self._parts.switchboard.post(Topic.RUN, run_id)
        return self._seen(record)

    def list(self, after: str = "", most: int | None = None) -> list[Run]:
        """All runs, newest first; so many of them behind a run."""
        return [self._seen(record) for record in self._parts.runs.list(after, most)]

    def census(self) -> RunCensus:
        """How many runs there are, and those that have not ended."""
        runs = self._parts.runs
        active = [self._seen(record) for record in runs.active()]
        return RunCensus(runs.states(), active, runs.completed_rounds())

    def get(self, run_id: str) -> Run:
        """A run."""
        return self._seen(self._parts.runs.get(run_id))

    def rounds(self, run_id: str, after_round: int = 0) -> tuple[Round, ...]:
        """Its completed rounds after a number, in order."""
        return self._parts.runs.rounds(run_id, after_round)

    async def watch(
        self, run_id: str, after_round: int
    ) -> AsyncIterator[tuple[Run, tuple[Round, ...]]]:
        """The run at every change, with the rounds completed since; ends with the run."""
        await asyncio.to_thread(self._parts.runs.state, run_id)  # it must exist
        news = self._news.setdefault(run_id, Bell())
        while not self._closing:
            rings = news.rings
            run = self._seen(await asyncio.to_thread(self._parts.runs.get, run_id))
            rounds = await asyncio.to_thread(self._parts.runs.rounds, run_id, after_round)
            yield run, rounds
            if run.state.ended:
                return
            after_round = rounds[-1].number if rounds else after_round
            await news.wait_async(rings, _WATCH_SECONDS)
        raise Unavailable("the coordinator is stopping; watch again when it is back")

    def pause(self, run_id: str, by: str = COORDINATOR) -> Run:
        """Stop handing out a run's work."""
        return self._changed(self._parts.runs.pause(run_id, self._parts.clock(), by=by))

    def resume(self, run_id: str, by: str = COORDINATOR) -> Run:
        """Go on with a paused run."""
        return self._changed(self._parts.runs.resume(run_id, self._parts.clock(), by))

    def cancel(self, run_id: str, by: str = COORDINATOR) -> Run:
        """End a run for good."""
        return self._changed(self._parts.runs.cancel(run_id, self._parts.clock(), by))

    def delete(self, run_id: str, by: str = COORDINATOR) -> None:
        """Delete a run that has ended; on return it is gone."""
        self._parts.runs.begin_deletion(run_id, self._parts.clock(), by)
        self._parts.switchboard.post(Topic.RUN, run_id)
        give_up_at = time.monotonic() + _DELETION_SECONDS
        while self._parts.runs.exists(run_id):
            if time.monotonic() > give_up_at:
                raise Unavailable(
                    f"run {run_id!r} is being deleted, but is not gone yet; that goes on by "
                    "itself, or ask again"
                )
            time.sleep(_LOOK_SECONDS)

    def devices(self, after: str = "", most: int | None = None) -> tuple[Device, ...]:
        """The devices that ever checked in, by id; so many behind an id."""
        return tuple(self._parts.registry.list(after, most))

    async def model(self, run_id: str, round_number: int, offset: int = 0) -> AsyncIterator[bytes]:
        """The model after a round, in chunks."""
        model = await asyncio.to_thread(self._parts.runs.model, run_id, round_number)
        content = await asyncio.to_thread(self._parts.contents.of, run_id)
        async for chunk in outgoing(content.blobs, model, offset):
            yield chunk

    def _require_size(self, recipe: Recipe) -> None:
        size_bytes = self._parts.learning.weights_bytes(recipe)
        largest = self._parts.contents.max_blob_bytes
        if size_bytes > largest:
            raise InvalidInput(
                f"the model, with what {recipe.method.name} learns besides it, would have "
                f"{size_bytes} bytes; HFMDS_MAX_BLOB_BYTES allows {largest}"
            )

    def _changed(self, record: RunRecord) -> Run:
        with log_context(run=record.run_id):
            log.info("run is %s", record.state.value)
        run = self._seen(record)
        self._parts.switchboard.post(Topic.RUN, record.run_id)
        self._parts.switchboard.post(Topic.NEWS, *news_of(record.run_id, run.progress))
        self._parts.switchboard.post(Topic.WORK)  # it may have come, or gone, for any device
        return run

    def _drive(self, record: RunRecord) -> bool:
        """Start the run's driver, if this coordinator leads and has none; true if it did."""
        with self._drivers_lock:
            parts = self._driving_parts
            if parts is None or self._closing or record.run_id in self._drivers:
                return False
            driver = RunDriver(record, parts, self._ended)
            self._drivers[record.run_id] = driver
        driver.start()
        return True

    def _driving(self) -> tuple[RunDriver, ...]:
        with self._drivers_lock:
            return tuple(self._drivers.values())

    def _ended(self, driver: RunDriver) -> None:
        with self._drivers_lock:
            if self._drivers.get(driver.run_id) is not driver:  # it was stopped: others drive now
                return
            del self._drivers[driver.run_id]
            parts = self._driving_parts
        try:
            state = self._parts.runs.state(driver.run_id)
        except NotFound:  # deleted in the meantime
            return
        if state is RunState.DELETING:
            self._clear_away(driver.run_id)
        elif state.ended:
            self._parts.metrics.run_ended(driver.run_id)
            self._parts.switchboard.post(Topic.WORK)  # devices that wait for this run only may go
            if parts:
                self._deletion.clear(parts, driver.run_id)

    def _clear_away(self, run_id: str) -> None:
        """Remove a run that is to be deleted, unless its driver is still at work."""
        with self._drivers_lock:
            if self._driving_parts and run_id not in self._drivers:
                self._deletion.begin(self._driving_parts, run_id)

    def _seen(self, record: RunRecord) -> Run:
        driver = self._drivers.get(record.run_id)
        progress = driver.progress if driver else self._progress.get(record.run_id)
        return record.seen_with(progress)

    def _resulted(self, run_id: str) -> None:
        """A task of the run has come to an end here."""
        driver = self._drivers.get(run_id)
        if driver:
            driver.bell.ring()
        else:
            self._parts.switchboard.post(Topic.RUN, run_id)

    def _look_at(self, run_ids: tuple[str, ...]) -> None:
        """Somebody did something to these runs, or to any: their drivers should look."""
        if not run_ids:
            self._ring_all()
        for run_id in run_ids:
            driver = self._drivers.get(run_id)
            if driver:
                driver.bell.ring()
            elif self._driving_parts and self._parts.runs.exists(run_id):
                record = self._parts.runs.get(run_id)
                if record.state is RunState.DELETING:
                    self._clear_away(run_id)
                elif not record.state.ended:
                    self._drive(record)

    def _heard_news(self, news: tuple[str, ...]) -> None:
        """There is something to see of a run, or of any."""
        if not news:
            self._progress.clear()
            for bell in tuple(self._news.values()):
                bell.ring()
            return
        run_id, progress = news[0], progress_in(news)
        if progress and run_id not in self._drivers:
            self._progress[run_id] = progress
        else:
            self._progress.pop(run_id, None)
        if run_id in self._news:
            self._news[run_id].ring()

    def _ring_all(self) -> None:
        for driver in self._driving():
            driver.bell.ring()


def _require_open_files(cohort_size: int) -> None:
    """Averaging has every update of a round open."""
    allowed = open_files_allowed() - OWN_FILES
    if cohort_size > allowed:
        raise InvalidInput(
            f"recipe.cohort_size is {cohort_size}, but this coordinator may have only {allowed} "
            "updates open at once; let it have more files (ulimit -Hn, LimitNOFILE=), or ask for "
            "fewer devices"
        )
