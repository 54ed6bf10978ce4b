"""The life of runs: the domain behind AdminService.

Each run that has not ended has a driver. Opening the coordinator starts the drivers of all such
runs, so a run that was cut off goes on by itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Collection

from coordinator.bell import Bell
from coordinator.driver import RunDriver
from coordinator.parts import Parts
from coordinator.run_records import RunRecord
from hfmds.algorithm.models import build_model
from hfmds.errors import InvalidInput
from hfmds.service.telemetry import log_context
from hfmds.wire.chunks import outgoing
from hfmds.wire.types import Device, Round, Run, RunSpec, RunState, require_id

log = logging.getLogger(__name__)

_MAX_RUN_ID = 100  # pool ids are run ids with the round behind
_WATCH_SECONDS = 30.0  # a watcher hears at least so often that the run is alive


class Runs:
    """What operators can do. Methods that are not asynchronous block: call them in a thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._drivers: dict[str, RunDriver] = {}
        parts.registry.on_arrival(self._ring_all)
        parts.dispatch.on_result(self._ring)

    def open(self) -> None:
        """Go on with every run that has not ended."""
        for record in reversed(self._parts.runs.list()):
            if record.state.ended:
                if record.last_round:
                    self._parts.metrics.show_round(record.run_id, record.last_round)
                self._parts.metrics.run_ended(record.run_id)
            else:
                log.info("run goes on", extra={"after_round": record.completed_rounds})
                self._drive(record)

    def close(self, timeout_seconds: float) -> None:
        """Stop driving; nothing is lost."""
        for driver in list(self._drivers.values()):
            driver.stop(timeout_seconds)

    def create(self, run_id: str, spec: RunSpec) -> Run:
        """Add a run and start it, or find the same one."""
        run_id = require_id(run_id, "run_id") if run_id else _new_id(spec)
        if len(run_id) > _MAX_RUN_ID:
            raise InvalidInput(f"run_id is {len(run_id)} characters long; at most {_MAX_RUN_ID}")
        build_model(spec.recipe.model)  # refuses what cannot be built
        self._parts.held_out.check(spec.recipe)
        record, is_new = self._parts.runs.create(run_id, spec, self._parts.clock())
        if is_new:
            with log_context(run=run_id):
                log.info("run created", extra={"method": spec.recipe.method})
            self._drive(record)
        return self._seen(record)

    def list(self) -> list[Run]:
        """All runs, newest first."""
        return [self._seen(record) for record in self._parts.runs.list()]

    def get(self, run_id: str) -> tuple[Run, tuple[Round, ...]]:
        """A run with its rounds."""
        return self._seen(self._parts.runs.get(run_id)), self._parts.runs.rounds(run_id)

    async def watch(
        self, run_id: str, after_round: int
    ) -> AsyncIterator[tuple[Run, tuple[Round, ...]]]:
        """The run at every change, with the rounds completed since; ends with the run."""
        while True:
            driver = self._drivers.get(run_id)
            bell = driver.bell if driver else Bell()
            rings = bell.rings
            run = self._seen(await asyncio.to_thread(self._parts.runs.get, run_id))
            rounds = await asyncio.to_thread(self._parts.runs.rounds, run_id, after_round)
            yield run, rounds
            if run.state.ended:
                return
            after_round = rounds[-1].number if rounds else after_round
            await bell.wait_async(rings, _WATCH_SECONDS)

    def pause(self, run_id: str) -> Run:
        """Stop handing out a run's work."""
        return self._change(run_id, RunState.PAUSED, {RunState.RUNNING})

    def resume(self, run_id: str) -> Run:
        """Go on with a paused run."""
        return self._change(run_id, RunState.RUNNING, {RunState.PAUSED})

    def cancel(self, run_id: str) -> Run:
        """End a run for good."""
        run = self._change(run_id, RunState.CANCELLED, {RunState.RUNNING, RunState.PAUSED})
        self._parts.tasks.end_run(run_id)
        return run

    def devices(self) -> tuple[Device, ...]:
        """The devices that ever checked in, by id."""
        return tuple(self._parts.registry.list())

    async def model(self, run_id: str, round_number: int) -> AsyncIterator[bytes]:
        """The model after a round, in chunks."""
        completed = await asyncio.to_thread(self._parts.runs.round, run_id, round_number)
        blobs = self._parts.contents.of(run_id).blobs
        async for chunk in outgoing(blobs, completed.weights, 0):
            yield chunk

    def _change(self, run_id: str, to: RunState, allowed_from: Collection[RunState]) -> Run:
        record = self._parts.runs.change_state(run_id, to, allowed_from)
        with log_context(run=run_id):
            log.info("run is %s", record.state.value)
        self._ring(run_id)
        self._parts.dispatch.announce_all()  # work may have come, or gone, for any device
        return self._seen(record)

    def _drive(self, record: RunRecord) -> None:
        driver = RunDriver(record, self._parts, self._ended)
        self._drivers[record.run_id] = driver
        driver.start()

    def _ended(self, run_id: str) -> None:
        self._drivers.pop(run_id, None)
        if self._parts.runs.state(run_id).ended:
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
        for driver in list(self._drivers.values()):
            driver.bell.ring()


def _new_id(spec: RunSpec) -> str:
    return f"{spec.recipe.method}-{secrets.token_hex(4)}"
