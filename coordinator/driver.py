"""Drives one run: Algorithm 1 over its devices, in a thread, recording every round."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from coordinator.bell import Bell
from coordinator.parts import Parts
from coordinator.remote_fleet import RemoteFleet
from coordinator.run_records import RunRecord
from coordinator.task_records import PhaseKey, TaskState
from hfmds.algorithm.federation import federate
from hfmds.algorithm.models import initial_weights
from hfmds.algorithm.seeds import derive_seed
from hfmds.algorithm.types import Checkpoint, RoundResult
from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.telemetry import log_context
from hfmds.wire.records import decode_update_report
from hfmds.wire.tensors import StoredWeights, encode_weights
from hfmds.wire.types import Progress, Round, RunState

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_RETRY_SECONDS = 5.0
_PAUSED_LOOK_SECONDS = 60.0


class _Stop(Exception):
    """The run has ended, or the process is to stop."""


class RunDriver:
    """One run's thread; also the `RunControl` its fleet listens to."""

    def __init__(self, record: RunRecord, parts: Parts, on_end: Callable[[str], None]) -> None:
        self.run_id = record.run_id
        self.bell = Bell()
        self.progress: Progress | None = None
        self._spec = record.spec
        self._parts = parts
        self._on_end = on_end
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"run-{record.run_id}", daemon=True)

    def start(self) -> None:
        """Begin, or go on after the last recorded round."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Leave off; what is recorded stays, the next start goes on from there."""
        self._stopping = True
        self.bell.ring()
        self._thread.join(timeout_seconds)

    # --- RunControl -----------------------------------------------------------------------------

    def heed(self) -> bool:
        paused = False
        while True:
            rings = self.bell.rings
            if self._stopping:
                raise _Stop
            state = self._parts.runs.state(self.run_id)
            if state.ended:
                raise _Stop
            if state is RunState.RUNNING:
                return paused
            paused = True
            self.bell.wait(rings, _PAUSED_LOOK_SECONDS)

    def pause(self, reason: str) -> None:
        log.error("the run is paused: %s", reason)
        self._parts.runs.change_state(self.run_id, RunState.PAUSED, {RunState.RUNNING}, reason)
        self.bell.ring()

    def show(self, progress: Progress) -> None:
        if progress != self.progress:
            self.progress = progress
            self.bell.ring()

    def on_loop(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return asyncio.run_coroutine_threadsafe(call(), self._parts.loop).result()

    # --- the thread -----------------------------------------------------------------------------

    def _main(self) -> None:
        with log_context(run=self.run_id):
            while True:
                try:
                    self._drive()
                except _Stop:
                    pass
                except Unavailable as error:
                    # Storage is busy or full: nothing is lost, the round is taken up again.
                    log.warning("the run waits: %s", error)
                    self.bell.wait(self.bell.rings, _RETRY_SECONDS)
                    continue
                except HfmdsError as error:
                    self._fail(str(error))
                except Exception:
                    log.exception("the run fails")
                    self._fail("unexpected error; the coordinator's log has it")
                break
            self._on_end(self.run_id)
            self.bell.ring()

    def _drive(self) -> None:
        fleet = RemoteFleet(self.run_id, self._spec, self, self._parts)
        self.heed()
        for result in federate(fleet, self._spec.recipe, self._start()):
            completed = self._completed(result)
            record = self._parts.runs.complete_round(self.run_id, completed)
            self._drop_updates(completed)
            self._parts.metrics.round_completed(self.run_id, completed)
            accuracy = completed.evaluation.accuracy if completed.evaluation else None
            with log_context(round=completed.number):
                log.info(
                    "round completed",
                    extra={
                        "devices": len(completed.device_ids),
                        "accuracy": accuracy,
                        "training_loss": completed.training_loss,
                        "seconds": round(completed.duration_seconds, 3),
                        "state": record.state.value,
                    },
                )
            self.bell.ring()

    def _start(self) -> Checkpoint:
        """Where the loop begins: after the last recorded round, or at w^0."""
        last = self._parts.runs.get(self.run_id).last_round
        if last is None:
            recipe = self._spec.recipe
            seed = derive_seed(recipe.seed, "weights")
            return Checkpoint(0, initial_weights(recipe.model, seed))
        self._parts.metrics.show_round(self.run_id, last)
        path = self._parts.contents.of(self.run_id).blobs.local_path(last.weights)
        weights = StoredWeights(path, f"the model after round {last.number}")
        return Checkpoint(last.number, weights, last.pool)

    def _completed(self, result: RoundResult) -> Round:
        """The round as it is recorded; its model is durable when this returns."""
        t = result.checkpoint.round_number
        blobs = self._parts.contents.of(self.run_id).blobs
        first = self._parts.tasks.get_phase(
            PhaseKey(self.run_id, t, "synthesise" if result.refreshed else "train")
        )
        return Round(
            number=t,
            device_ids=result.cohort,
            weights=blobs.put_bytes(encode_weights(result.checkpoint.weights)),
            training_loss=result.training_loss,
            evaluation=result.evaluation,
            refreshed=result.refreshed,
            pool=result.checkpoint.pool,
            traffic=result.traffic,
            duration_seconds=self._parts.clock() - first.opened_at,
        )

    def _drop_updates(self, completed: Round) -> None:
        """Free the space of updates that are averaged; an update may also be a model: keep it."""
        blobs = self._parts.contents.of(self.run_id).blobs
        models = self._parts.tasks.models_handed_out(self.run_id) | {completed.weights.sha256}
        phase = self._parts.tasks.get_phase(PhaseKey(self.run_id, completed.number, "train"))
        for task in phase.in_state(TaskState.ACCEPTED):
            update = decode_update_report(task.report).update
            if update.sha256 not in models:
                blobs.delete(update)

    def _fail(self, reason: str) -> None:
        log.error("the run fails: %s", reason)
        self._parts.runs.change_state(
            self.run_id, RunState.FAILED, {RunState.RUNNING, RunState.PAUSED}, reason
        )
