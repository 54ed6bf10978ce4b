"""Drives one run: Algorithm 1 over its devices, recording every round.

The driver never gives a run up because of an error. It tries again while storage is busy. Any other
error pauses the run with the reason, until an operator resumes or cancels it.
"""

from __future__ import annotations

import logging

from coordinator.monitoring.metrics import Metrics
from coordinator.records.runs import RunRecord
from coordinator.replicas.leadership import Deposed
from coordinator.runs.checkpoints import Checkpoints
from coordinator.runs.run_control import RunControl, RunStopped
from hfmds.algorithm.federation import Fleet, federate
from hfmds.domain.learning import Checkpoint
from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.monitoring.logs import log_context

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0


class RunDriver:
    """Drives one run in the calling thread."""

    def __init__(
        self,
        run: RunRecord,
        control: RunControl,
        fleet: Fleet,
        checkpoints: Checkpoints,
        metrics: Metrics,
    ) -> None:
        self.run_id = run.run_id
        self.control = control
        self._run = run
        self._fleet = fleet
        self._checkpoints = checkpoints
        self._metrics = metrics

    def drive(self) -> None:
        """Begin the run, or continue it after its last recorded round, until it ends or stops."""
        with log_context(run=self.run_id):
            try:
                while self._drive_on():
                    pass
            except Deposed as error:
                log.warning("the run is another coordinator's to drive: %s", error)
                self.control.stopping = True
            finally:
                self.control.timing.end()
                self.control.progress = None
                self._metrics.run_left(self.run_id, to_another=self.control.stopping)

    def _drive_on(self) -> bool:
        """Drive until the run ends or an error occurs. Returns True if it may go on."""
        try:
            self._federate()
            return False
        except RunStopped:
            return False
        except Deposed:
            raise
        except Unavailable as error:
            return self._rest(error)
        except Exception as error:  # the run shows it to its operator
            if self.control.stopping or self._has_ended():
                return False  # the run's content went away, or this process stops
            if isinstance(error, HfmdsError):
                reason = str(error)
            else:
                log.exception("unexpected error")
                reason = f"unexpected {type(error).__name__}; the coordinator's log has it"
            try:
                self.control.pause(reason)
            except Unavailable as busy:
                return self._rest(busy)
            return True

    def _has_ended(self) -> bool:
        try:
            return self._checkpoints.has_ended()
        except Unavailable:
            return False

    def _rest(self, error: Unavailable) -> bool:
        """Wait while storage is busy or full. The round is then taken up again."""
        log.warning("the run waits: %s", error)
        self.control.wakeup.wait(self.control.wakeup.wakes, _RETRY_SECONDS)
        return not self.control.stopping

    def _federate(self) -> None:
        self.control.wait_until_running()
        start = self._start()
        self.control.timing.begin(start.round_number + 1)
        for result in federate(self._fleet, self._run.spec.recipe, start):
            completed, position = self._checkpoints.record(result, self.control.now())
            if position.completed_rounds < completed.number:
                raise RunStopped  # an operator cancelled it
            self.control.timing.end()
            self._metrics.round_completed(self.run_id, completed)
            with log_context(round=completed.number):
                log.info(
                    "round completed",
                    extra={
                        "devices": len(completed.device_ids),
                        "accuracy": completed.evaluation and completed.evaluation.accuracy,
                        "training_loss": completed.training_loss,
                        "seconds": round(completed.duration_seconds, 3),
                        "state": position.state.value,
                    },
                )
            self.control.notify_watchers()
            if position.state.ended:  # perhaps before its last round, by an early stop
                return
            self.control.timing.begin(completed.number + 1)

    def _start(self) -> Checkpoint:
        """Return where the loop begins, and show it."""
        self._metrics.show_limits(self.run_id, self._run.spec.recipe.pool)
        if rounds := self._checkpoints.last_and_best():
            self._metrics.show_run(self.run_id, *rounds)
        return self._checkpoints.start()
