"""Drives one run: Algorithm 1 over its devices, in a thread, recording every round.

A run is never lost to an error: storage that is busy is tried again, and everything else pauses the
run with the reason, until an operator resumes or cancels it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from coordinator.devices.wakeup import Bell
from coordinator.monitoring.round_timing import RoundWatch
from coordinator.parts import Parts
from coordinator.records.runs import RunRecord
from coordinator.records.task_rows import PhaseKey
from coordinator.replicas.leadership import Deposed
from coordinator.replicas.notices import Topic
from coordinator.runs.leftovers import drop_leftovers
from coordinator.runs.models import Models
from coordinator.runs.progress_notice import news_of
from coordinator.runs.remote_fleet import RemoteFleet
from hfmds.algorithm.federation import federate
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Checkpoint, RoundResult, Weights
from hfmds.domain.runs import Progress, Round, RunState
from hfmds.errors import HfmdsError, NotFound, Unavailable, WrongState
from hfmds.service.monitoring.logs import log_context
from hfmds.wire.tensors import StoredWeights, encode_weights

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_RETRY_SECONDS = 5.0
_PAUSED_LOOK_SECONDS = 60.0
_LOOP_LOOK_SECONDS = 0.5


class _Stop(Exception):
    """The run has ended, or the process is to stop."""


class RunDriver:
    """One run's thread; also the `RunControl` its fleet listens to."""

    def __init__(
        self, record: RunRecord, parts: Parts, on_end: Callable[[RunDriver], None]
    ) -> None:
        self.run_id = record.run_id
        self.bell = Bell()  # rung when the driver should look again
        self.progress: Progress | None = None
        self._record = record
        self._parts = parts
        self._blobs = parts.contents.of(record.run_id).blobs
        self._models = Models(self._blobs)
        self._on_end = on_end
        self._watch = RoundWatch(record, parts.metrics)
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"run-{record.run_id}", daemon=True)

    def start(self) -> None:
        """Begin, or go on after the last recorded round."""
        self._thread.start()

    def stop(self) -> None:
        """Leave off soon; what is recorded stays, the next start goes on from there."""
        self._stopping = True
        self.bell.ring()

    def is_alive(self) -> bool:
        """Whether the thread has not ended yet."""
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_seconds)

    # --- RunControl -----------------------------------------------------------------------------

    def heed(self) -> None:
        while True:
            rings = self.bell.rings
            if self._stopping:
                raise _Stop
            state = self._parts.runs.state(self.run_id)
            if state.ended:
                raise _Stop
            if state is RunState.RUNNING:
                return
            self._blobs.free_recycled()
            self.bell.wait(rings, _PAUSED_LOOK_SECONDS)

    def pause(self, reason: str) -> None:
        log.error("the run is paused: %s", reason)
        try:
            self._parts.runs.pause(self.run_id, self._parts.clock(), reason)
        except WrongState:  # it was cancelled meanwhile, which `heed` will notice
            return
        self._tell()

    def show(self, progress: Progress) -> None:
        if progress != self.progress:
            self.progress = progress
            self._watch.enter(progress.phase)
            self._parts.metrics.run_progressed(self.run_id)
            self._tell()

    def on_loop(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        future = asyncio.run_coroutine_threadsafe(call(), self._parts.loop)
        while True:
            try:
                return future.result(_LOOP_LOOK_SECONDS)
            except concurrent.futures.TimeoutError:
                if self._stopping:
                    future.cancel()
                    raise _Stop from None

    # --- the thread -----------------------------------------------------------------------------

    def _main(self) -> None:
        with log_context(run=self.run_id):
            try:
                while self._go_on():
                    pass
            except Deposed as error:
                log.warning("the run is another coordinator's to drive: %s", error)
                self._stopping = True
            finally:
                self._blobs.free_recycled()
                self._watch.end()
                self.progress = None
                self._parts.metrics.run_left(self.run_id, to_another=self._stopping)
                self._on_end(self)
                self._tell()

    def _go_on(self) -> bool:
        """Drive until the run ends, or until something is in the way; true if it may go on."""
        try:
            self._drive()
            return False
        except _Stop:
            return False
        except Deposed:
            raise
        except Unavailable as error:
            return self._rest(error)
        except Exception as error:  # whoever waits for it gets it
            if self._stopping or self._has_ended():
                return False  # whatever it was, it came from the parts or the run going away
            if isinstance(error, HfmdsError):
                reason = str(error)
            else:
                log.exception("unexpected error")
                reason = f"unexpected {type(error).__name__}; the coordinator's log has it"
            try:
                self.pause(reason)
            except Unavailable as busy:
                return self._rest(busy)
            return True

    def _has_ended(self) -> bool:
        try:
            return self._parts.runs.state(self.run_id).ended
        except NotFound:  # it was deleted
            return True
        except Unavailable:
            return False

    def _rest(self, error: Unavailable) -> bool:
        """Storage is busy or full: nothing is lost, the round is taken up again."""
        log.warning("the run waits: %s", error)
        self._blobs.free_recycled()
        self.bell.wait(self.bell.rings, _RETRY_SECONDS)
        return not self._stopping

    def _drive(self) -> None:
        self.heed()
        recipe = self._record.spec.recipe
        if recipe.method.server_learns:
            self._parts.learning.load()
        fleet, start = RemoteFleet(self._record, self, self._parts, self._models), self._start()
        self._watch.begin(start.round_number + 1)
        for result in federate(fleet, recipe, start):
            completed = self._completed(result)
            now = self._parts.clock()
            standing = self._parts.runs.complete_round(self.run_id, completed, now)
            if standing.completed_rounds < completed.number:
                raise _Stop  # it was cancelled meanwhile
            state = standing.state
            if state.ended:  # and it is not deleted as long as it has a driver
                drop_leftovers(self._parts, self.run_id)
            else:
                self._drop_updates(completed)
            self._watch.end()
            self._parts.metrics.round_completed(self.run_id, completed)
            with log_context(round=completed.number):
                log.info(
                    "round completed",
                    extra={
                        "devices": len(completed.device_ids),
                        "accuracy": completed.evaluation and completed.evaluation.accuracy,
                        "training_loss": completed.training_loss,
                        "seconds": round(completed.duration_seconds, 3),
                        "state": state.value,
                    },
                )
            self._tell()
            if state.ended:  # before its last round, if it was stopped early
                return
            self._watch.begin(completed.number + 1)

    def _tell(self) -> None:
        """Tell watchers, wherever they are, that there is something to see."""
        self._parts.switchboard.post(Topic.NEWS, *news_of(self.run_id, self.progress))

    def _start(self) -> Checkpoint:
        """Where the loop begins: after the last recorded round, or at w^0."""
        self._parts.metrics.show_limits(self.run_id, self._record.spec.recipe.pool)
        run = self._parts.runs.get(self.run_id)
        last = run.last_round
        if last is None:
            return self._first()
        self._drop_models()  # before it was killed there may have been no time for it
        best = self._parts.runs.round(
            self.run_id, run.best_round
        )  # the last, if none was evaluated
        self._parts.metrics.show_standing(self.run_id, last, best)
        path = self._blobs.local_path(last.weights)
        weights = StoredWeights(path, f"the model after round {last.number}")
        state: Weights = {}
        if last.server_state:
            path = self._blobs.local_path(last.server_state)
            state = StoredWeights(path, f"the server's state after round {last.number}")
        return Checkpoint(last.number, weights, last.pool, state)

    def _first(self) -> Checkpoint:
        start = self._record.start
        if start is None:
            return self._parts.learning.first_checkpoint(self._record.spec.recipe)
        return Checkpoint(0, StoredWeights(self._blobs.local_path(start), "the first model"))

    def _completed(self, result: RoundResult) -> Round:
        """The round as it is recorded; its model is durable when this returns."""
        t, state = result.checkpoint.round_number, result.checkpoint.server_state
        first = PhaseKey(self.run_id, t, "synthesise" if result.refreshed else "train")
        began_at = self._parts.phases.opened_at(first)
        asynchronous = self._record.spec.policy.asynchronous is not None
        return Round(
            number=t,
            device_ids=result.cohort,
            weights=self._models.put(result.checkpoint.weights),
            training_loss=result.training_loss,
            evaluation=result.evaluation,
            refreshed=result.refreshed,
            pool=result.checkpoint.pool,
            traffic=result.traffic,
            duration_seconds=self._parts.clock() - began_at,
            server_state=self._blobs.put_bytes(encode_weights(state)) if state else None,
            staleness=self._parts.phases.staleness(self.run_id, t) if asynchronous else None,
            device_evaluation=result.device_evaluation,
        )

    def _drop_updates(self, completed: Round) -> None:
        """Leave what is not needed of updates, and of what the server remembered, to the next."""
        # Before asking what is needed: should we not lead any more, asking tells; and what comes
        # after that for another leader is not in the list.
        there = tuple(self._blobs.digests())
        dropped = self._parts.runs.dropped_models(self.run_id)
        needed = self._parts.phases.models_handed_out(self.run_id) - dropped
        needed.add(completed.weights.sha256)
        if completed.server_state:
            needed.add(completed.server_state.sha256)
        unneeded = [digest for digest in there if digest.sha256 not in needed]
        before = None
        if completed.server_state and completed.number > 1:
            before = self._parts.runs.round(self.run_id, completed.number - 1).server_state
        also = dropped | ({before.sha256} if before else set())
        with self._parts.phases.spent_updates(self.run_id, completed.number) as spent:
            # All, unless devices are still at work, as in asynchronous rounds they are.
            self._blobs.recycle(d for d in unneeded if spent is None or d.sha256 in spent | also)

    def _delete(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self._blobs.delete(digest)

    def _drop_models(self) -> None:
        """Free the space of models that are not kept any more."""
        dropped = self._parts.runs.dropped_models(self.run_id)
        if dropped:
            self._delete(digest for digest in self._blobs.digests() if digest.sha256 in dropped)
