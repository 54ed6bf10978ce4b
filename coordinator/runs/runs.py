"""What operators do with runs: the domain behind AdminService.

The coordinator that leads drives the runs (`drivers`). One that stands by does everything else, and
tells the leader by notices.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

from coordinator.devices.wakeup import Wakeup
from coordinator.monitoring.live_counts import RunCounts
from coordinator.records.events import COORDINATOR
from coordinator.records.runs import RunRecord
from coordinator.replicas.notices import Notices, Topic
from coordinator.runs.checkpoints import RunModels
from coordinator.runs.drivers import Drivers
from coordinator.runs.run_control import DriverRecords, news_of, progress_in
from hfmds.domain.devices import require_id
from hfmds.domain.runs import Progress, Round, Run, RunSpec
from hfmds.errors import InvalidInput, Unavailable
from hfmds.service.monitoring.logs import log_context
from hfmds.wire.conversions.admin_calls import new_run_id

log = logging.getLogger(__name__)

_MAX_RUN_ID = 100  # pool ids are run ids with a nonce, the round and a mark behind
_DELETION_SECONDS = 15.0  # how long a caller waits for a deletion
_LOOK_SECONDS = 0.05
_WATCH_SECONDS = 30.0  # a watcher hears at least this often that the run is alive


class Runs:
    """Creates, shows, steers and deletes runs. Methods that are not asynchronous block."""

    def __init__(
        self,
        records: DriverRecords,
        drivers: Drivers,
        models: RunModels,
        notices: Notices,
        clock: Callable[[], float],
    ) -> None:
        self._runs = records.runs
        self._rounds = records.rounds
        self._drivers = drivers
        self._models = models
        self._notices = notices
        self._clock = clock
        self._progress: dict[str, Progress] = {}  # of runs that another coordinator drives
        self._news: dict[str, Wakeup] = {}  # of runs that have had watchers
        self._closing = False
        notices.listen(Topic.NEWS, self._take_news)

    def end_watches(self) -> None:
        """End all watches, because the coordinator stops."""
        self._closing = True
        self._take_news(())

    def create(self, run_id: str, spec: RunSpec, by: str = COORDINATOR) -> Run:
        """Add a run and start it, or find the same one."""
        run_id = require_id(run_id, "run_id") if run_id else new_run_id(spec)
        if len(run_id) > _MAX_RUN_ID:
            raise InvalidInput(f"run_id is {len(run_id)} characters long; at most {_MAX_RUN_ID}")
        self._models.require_usable(spec)
        start = self._models.copy_first(run_id, spec)
        record, is_new = self._runs.create(run_id, spec, self._clock(), by, start)
        if is_new:
            with log_context(run=run_id):
                log.info("run created", extra={"method": spec.recipe.method.name})
            self._drivers.drive(record)
            self._notices.post(Topic.RUN, run_id)
        return self._shown(record)

    def list(self, after: str = "", most: int | None = None) -> list[Run]:
        """Return runs, newest first: at most so many, after a run."""
        return [self._shown(record) for record in self._runs.list(after, most)]

    def counts(self) -> RunCounts:
        """Count the runs, and show those that have not ended."""
        active = [self._shown(record) for record in self._runs.active()]
        return RunCounts(self._runs.states(), active, self._rounds.count_completed())

    def get(self, run_id: str) -> Run:
        """Return a run."""
        return self._shown(self._runs.get(run_id))

    def rounds(self, run_id: str, after_round: int = 0) -> tuple[Round, ...]:
        """Return a run's completed rounds after a number, in order."""
        return self._rounds.completed(run_id, after_round)

    async def watch(
        self, run_id: str, after_round: int
    ) -> AsyncIterator[tuple[Run, tuple[Round, ...]]]:
        """Yield the run at every change, with the rounds completed since; end with the run."""
        await asyncio.to_thread(self._runs.state, run_id)  # it must exist
        news = self._news.setdefault(run_id, Wakeup())
        while not self._closing:
            wakes = news.wakes
            run = self._shown(await asyncio.to_thread(self._runs.get, run_id))
            rounds = await asyncio.to_thread(self._rounds.completed, run_id, after_round)
            yield run, rounds
            if run.state.ended:
                return
            after_round = rounds[-1].number if rounds else after_round
            await news.wait_async(wakes, _WATCH_SECONDS)
        raise Unavailable("the coordinator is stopping; watch again when it is back")

    def pause(self, run_id: str, by: str = COORDINATOR) -> Run:
        """Stop handing out a run's work."""
        return self._changed(self._runs.pause(run_id, self._clock(), by=by))

    def resume(self, run_id: str, by: str = COORDINATOR) -> Run:
        """Continue a paused run."""
        return self._changed(self._runs.resume(run_id, self._clock(), by))

    def cancel(self, run_id: str, by: str = COORDINATOR) -> Run:
        """End a run for good."""
        return self._changed(self._runs.cancel(run_id, self._clock(), by))

    def delete(self, run_id: str, by: str = COORDINATOR) -> None:
        """Delete a run that has ended. On return it is gone."""
        self._runs.begin_deletion(run_id, self._clock(), by)
        self._notices.post(Topic.RUN, run_id)
        give_up_at = time.monotonic() + _DELETION_SECONDS
        while self._runs.exists(run_id):
            if time.monotonic() > give_up_at:
                raise Unavailable(
                    f"run {run_id!r} is still being deleted; the deletion goes on by itself: ask "
                    "again to see whether it is done"
                )
            time.sleep(_LOOK_SECONDS)

    def _changed(self, record: RunRecord) -> Run:
        with log_context(run=record.run_id):
            log.info("run is %s", record.state.value)
        run = self._shown(record)
        self._notices.post(Topic.RUN, record.run_id)
        self._notices.post(Topic.NEWS, *news_of(record.run_id, run.progress))
        self._notices.post(Topic.WORK)  # any device may have got or lost work
        return run

    def _shown(self, record: RunRecord) -> Run:
        driven_here = self._drivers.drives(record.run_id)
        progress = self._drivers.progress(record.run_id)
        return record.seen_with(progress if driven_here else self._progress.get(record.run_id))

    def _take_news(self, news: tuple[str, ...]) -> None:
        """Take a notice that a run has changed, or any run has."""
        if not news:
            self._progress.clear()
            for wakeup in tuple(self._news.values()):
                wakeup.wake()
            return
        run_id, progress = news[0], progress_in(news)
        if progress and not self._drivers.drives(run_id):
            self._progress[run_id] = progress
        else:
            self._progress.pop(run_id, None)
        if run_id in self._news:
            self._news[run_id].wake()
