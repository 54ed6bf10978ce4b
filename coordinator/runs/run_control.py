"""The records that a run's driver writes, and the control that pauses, stops and shows the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from coordinator.devices.wakeup import Wakeup
from coordinator.monitoring.round_timing import RoundTimer
from coordinator.records.device_work import DeviceWork
from coordinator.records.phases import PhaseRecords
from coordinator.records.retention import RetentionRecords
from coordinator.records.rounds import RoundRecords
from coordinator.records.runs import RunRecords
from coordinator.replicas.notices import Notices, Topic
from hfmds.domain.runs import Phase, Progress, RunState
from hfmds.errors import WrongState

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 1.0  # leases, deadlines and devices run out without a wake-up
_PAUSED_LOOK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DriverRecords:
    """All that a driver reads and writes in the database.

    On the engine of a term, each transaction fails with Deposed once another coordinator leads.
    """

    runs: RunRecords
    rounds: RoundRecords
    phases: PhaseRecords
    work: DeviceWork
    retention: RetentionRecords

    @classmethod
    def on(cls, engine: Engine) -> DriverRecords:
        return cls(
            RunRecords(engine),
            RoundRecords(engine),
            PhaseRecords(engine),
            DeviceWork(engine),
            RetentionRecords(engine),
        )


class RunStopped(Exception):
    """The run has ended, or this process must stop driving it."""


class RunControl:
    """Pauses, stops and shows one run. Its methods block, except `stop`."""

    def __init__(
        self,
        run_id: str,
        runs: RunRecords,
        notices: Notices,
        timing: RoundTimer,
        clock: Callable[[], float],
    ) -> None:
        self.run_id = run_id
        self.wakeup = Wakeup()  # wakes when the driver should look again
        self.progress: Progress | None = None
        self.timing = timing
        self.now = clock
        self.stopping = False
        self._runs = runs
        self._notices = notices

    def stop(self) -> None:
        """Make the driver stop soon. Recorded work stays."""
        self.stopping = True
        self.wakeup.wake()

    def wait_until_running(self) -> None:
        """Block while the run is paused; raise RunStopped if it has ended or must stop here."""
        while True:
            wakes = self.wakeup.wakes
            if self.stopping:
                raise RunStopped
            state = self._runs.state(self.run_id)
            if state.ended:
                raise RunStopped
            if state is RunState.RUNNING:
                return
            self.wakeup.wait(wakes, _PAUSED_LOOK_SECONDS)

    def pause(self, reason: str) -> None:
        """Pause the run until an operator resumes it."""
        log.error("the run is paused: %s", reason)
        try:
            self._runs.pause(self.run_id, self.now(), reason)
        except WrongState:  # an operator cancelled it, which `wait_until_running` notices
            return
        self.notify_watchers()

    def show(self, progress: Progress) -> None:
        """Show operators what the run does now."""
        if progress != self.progress:
            self.progress = progress
            self.timing.enter(progress.phase)
            self.notify_watchers()

    def notify_watchers(self) -> None:
        """Tell the watchers of all coordinators that the run has changed."""
        self._notices.post(Topic.NEWS, *news_of(self.run_id, self.progress))

    def announce(self, devices: tuple[str, ...]) -> None:
        """Tell these devices that there may be work for them."""
        self._notices.announce(devices)


def news_of(run_id: str, progress: Progress | None) -> tuple[str, ...]:
    """Return the words of a notice that a run has changed: its id, and its progress if known."""
    if progress is None:
        return (run_id,)
    counts = progress.round_number, progress.done, progress.expected
    return (run_id, progress.phase.name, *map(str, counts))


def progress_in(news: Sequence[str]) -> Progress | None:
    """Return the progress that the words of a notice name."""
    if len(news) != 5:
        return None
    _, phase, round_number, done, expected = news
    return Progress(int(round_number), Phase[phase], int(done), int(expected))
