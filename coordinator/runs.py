"""The life of runs: the domain behind AdminService.

Each run that has not ended has a driver. Opening the coordinator starts the drivers of all such
runs, so a run that was cut off goes on by itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator

from coordinator.bell import Bell
from coordinator.driver import RunDriver
from coordinator.events import COORDINATOR
from coordinator.parts import Parts
from coordinator.run_records import RunRecord
from hfmds.algorithm.methods.registry import weights_bytes
from hfmds.algorithm.recipes import Recipe
from hfmds.errors import InvalidInput, NotFound, Unavailable
from hfmds.service.telemetry import log_context
from hfmds.wire.chunks import outgoing
from hfmds.wire.types import Device, Round, Run, RunSpec, RunState, require_id

log = logging.getLogger(__name__)

_MAX_RUN_ID = 100  # pool ids are run ids with a nonce and the round behind
_LAST_WORK_SECONDS = 15.0  # how long a deletion waits for the driver of a run that has ended
_WATCH_SECONDS = 30.0  # a watcher hears at least so often that the run is alive


class Runs:
    """What operators can do. Methods that are not asynchronous block: call them in a thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._drivers: dict[str, RunDriver] = {}
        self._drivers_lock = threading.Lock()
        self._closing = False
        parts.registry.on_arrival(self._ring_all)
        parts.dispatch.on_result(self._ring)

    def open(self) -> None:
        """Go on with every run that has not ended."""
        for record in reversed(self._parts.runs.list()):
            if record.state is RunState.DELETING:
                self._remove(record.run_id)
            elif record.state.ended:
                if record.last_round:
                    self._parts.metrics.show_round(record.run_id, record.last_round)
                self._parts.metrics.run_ended(record.run_id)
            else:
                with log_context(run=record.run_id):
                    log.info("run goes on", extra={"after_round": record.completed_rounds})
                self._drive(record)

    def leave_off(self) -> None:
        """Begin to stop: drivers leave off and watchers are sent away. Returns at once."""
        self._closing = True
        for driver in self._driving():
            driver.stop()

    def close(self, timeout_seconds: float) -> None:
        """Stop driving; nothing is lost."""
        self.leave_off()
        give_up_at = time.monotonic() + timeout_seconds
        for driver in self._driving():
            driver.join(max(0.0, give_up_at - time.monotonic()))

    def create(self, run_id: str, spec: RunSpec, by: str = COORDINATOR) -> Run:
        """Add a run and start it, or find the same one."""
        run_id = require_id(run_id, "run_id") if run_id else _new_id(spec)
        if len(run_id) > _MAX_RUN_ID:
            raise InvalidInput(f"run_id is {len(run_id)} characters long; at most {_MAX_RUN_ID}")
        self._require_size(spec.recipe)
        self._parts.held_out.check(spec.recipe)
        record, is_new = self._parts.runs.create(run_id, spec, self._parts.clock(), by)
        if is_new:
            with log_context(run=run_id):
                log.info("run created", extra={"method": spec.recipe.method.name})
            self._drive(record)
        return self._seen(record)

    def list(self) -> list[Run]:
        """All runs, newest first."""
        return [self._seen(record) for record in self._parts.runs.list()]

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
        while not self._closing:
            driver = self._drivers.get(run_id)
            news = driver.news if driver else Bell()
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
        driver = self._drivers.get(run_id)
        if driver:  # it is about to notice, or at its last round's end
            driver.stop()
            driver.join(_LAST_WORK_SECONDS)
            if run_id in self._drivers:
                raise Unavailable(
                    f"run {run_id!r} is being deleted, but its last work is not done yet; it goes "
                    "as soon as that is, or ask again"
                )
        self._remove(run_id)

    def devices(self) -> tuple[Device, ...]:
        """The devices that ever checked in, by id."""
        return tuple(self._parts.registry.list())

    async def model(self, run_id: str, round_number: int, offset: int = 0) -> AsyncIterator[bytes]:
        """The model after a round, in chunks."""
        completed = await asyncio.to_thread(self._parts.runs.round, run_id, round_number)
        content = await asyncio.to_thread(self._parts.contents.of, run_id)
        async for chunk in outgoing(content.blobs, completed.weights, offset):
            yield chunk

    def _require_size(self, recipe: Recipe) -> None:
        size_bytes, largest = weights_bytes(recipe), self._parts.contents.max_blob_bytes
        if size_bytes > largest:
            raise InvalidInput(
                f"the model, with what {recipe.method.name} learns besides it, would have "
                f"{size_bytes} bytes; HFMDS_MAX_BLOB_BYTES allows {largest}"
            )

    def _remove(self, run_id: str) -> None:
        """Do what is left of a deletion: content first, so that none is ever forgotten."""
        self._parts.contents.remove(run_id)
        self._parts.runs.finish_deletion(run_id, self._parts.clock())
        with log_context(run=run_id):
            log.info("run deleted")

    def _changed(self, record: RunRecord) -> Run:
        with log_context(run=record.run_id):
            log.info("run is %s", record.state.value)
        driver = self._drivers.get(record.run_id)
        if driver:
            driver.bell.ring()
            driver.news.ring()
        self._parts.dispatch.announce_all()  # work may have come, or gone, for any device
        return self._seen(record)

    def _drive(self, record: RunRecord) -> None:
        with self._drivers_lock:
            if record.run_id in self._drivers:
                return
            driver = RunDriver(record, self._parts, self._ended)
            self._drivers[record.run_id] = driver
        driver.start()

    def _driving(self) -> tuple[RunDriver, ...]:
        with self._drivers_lock:
            return tuple(self._drivers.values())

    def _ended(self, run_id: str) -> None:
        with self._drivers_lock:
            self._drivers.pop(run_id, None)
        try:
            state = self._parts.runs.state(run_id)
        except NotFound:  # deleted in the meantime
            return
        if state is RunState.DELETING:
            self._remove(run_id)
        elif state.ended:
            self._parts.metrics.run_ended(run_id)
            self._parts.dispatch.announce_all()  # devices that wait for this run only may go

    def _seen(self, record: RunRecord) -> Run:
        driver = self._drivers.get(record.run_id)
        return record.seen_with(driver.progress if driver else None)

    def _ring(self, run_id: str) -> None:
        driver = self._drivers.get(run_id)
        if driver:
            driver.bell.ring()

    def _ring_all(self) -> None:
        for driver in self._driving():
            driver.bell.ring()


def _new_id(spec: RunSpec) -> str:
    return f"{spec.recipe.method.name}-{secrets.token_hex(4)}"
