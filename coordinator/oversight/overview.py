"""What operators see besides runs: status, counts, funnels and event logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.monitoring.funnel import FunnelRecords
from coordinator.monitoring.live_counts import Counts
from coordinator.oversight.device_list import DeviceList
from coordinator.records.drain import DrainRecords
from coordinator.records.events import EventRecords
from coordinator.runs.runs import Runs
from hfmds.domain.administration.operations import Funnel, Status
from hfmds.domain.tasks import TaskStage
from hfmds.event_chain import Event

_PAGE_EVENTS = 1000


class Overview:
    """Shows the coordinator to operators. Methods block: call them in a thread."""

    def __init__(
        self,
        runs: Runs,
        events: EventRecords,
        funnel: FunnelRecords,
        device_list: DeviceList,
        drain: DrainRecords,
    ) -> None:
        self._runs = runs
        self._events = events
        self._funnel = funnel
        self.device_list = device_list
        self._drain = drain

    def events(self, run: str, after: int = 0) -> tuple[str, Sequence[Event]]:
        """Return a run's unique id and the next events of its log."""
        run_uid = self._events.log_of(run)
        return run_uid, self._events.events(run_uid, after, _PAGE_EVENTS)

    def last_events(self, run: str, most: int) -> Sequence[Event]:
        """Return the last events of a run's log, at most `most`, in order."""
        run_uid = self._events.log_of(run)
        last = self._events.last_sequence(run_uid)
        return self._events.events(run_uid, last - most, most)

    def funnels(self, run_id: str, round_number: int) -> Sequence[Funnel]:
        """Return how far tasks came up to now."""
        return self._funnel.funnels(run_id, round_number)

    def status(self) -> Status:
        """Return the coordinator's status; its tasks are those that devices hold."""
        counts = self.counts()
        held = {s: n for s, n in counts.pending_tasks.items() if s is not TaskStage.ASSIGNED}
        return Status(
            drain=self._drain.get(),
            runs=_named(counts.runs.by_state),
            devices=_named(counts.devices),
            tasks=_named(held),
        )

    def counts(self) -> Counts:
        """Count the devices, the runs and the pending tasks."""
        return Counts(
            devices=self.device_list.states(),
            runs=self._runs.counts(),
            pending_tasks=self._funnel.stages(),
            drained=self._drain.is_on(),
        )


def _named(counts: Mapping[Any, int]) -> dict[str, int]:
    """Return the counts above 0, by lower-case name."""
    return {state.name.lower(): count for state, count in counts.items() if count}
