"""What operators see and steer besides single runs: events, funnels, the drain, devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.devices.registry import Registry
from coordinator.monitoring.funnel import FunnelRecords
from coordinator.records.drain import DrainRecords
from coordinator.records.events import EventRecords
from coordinator.records.runs import RunRecords
from coordinator.replicas.notices import Notices, Topic
from hfmds.domain.administration.operations import Drain, Funnel, Status
from hfmds.domain.devices import Device
from hfmds.domain.tasks import TaskStage
from hfmds.event_chain import Event

_PAGE_EVENTS = 1000


class Operations:
    """Answers operators about the coordinator. Methods block: call them in a thread."""

    def __init__(
        self,
        runs: RunRecords,
        events: EventRecords,
        drain: DrainRecords,
        funnel: FunnelRecords,
        registry: Registry,
        notices: Notices,
    ) -> None:
        self._runs = runs
        self._events = events
        self._drain = drain
        self._funnel = funnel
        self._registry = registry
        self._notices = notices

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

    def set_drain(self, on: bool, by: str) -> Drain:
        """Start or end the drain of the coordinator."""
        drain = self._drain.set(on, by)
        self._notices.post(Topic.WORK)  # waiting devices go away, or get work
        self._notices.post(Topic.RUN)  # waiting rounds go on
        return drain

    def devices(self, after: str = "", most: int | None = None) -> tuple[Device, ...]:
        """Return the devices that ever checked in, by id: at most so many, after an id."""
        return tuple(self._registry.list(after, most))

    def status(self) -> Status:
        """Return the coordinator's status."""
        tasks = self._funnel.stages()
        return Status(
            drain=self._drain.get(),
            runs=_named(self._runs.states()),
            devices=_named(self._registry.states()),
            tasks={
                stage.name.lower(): count
                for stage, count in tasks.items()
                if stage is not TaskStage.ASSIGNED and count
            },
        )


def _named(counts: Mapping[Any, int]) -> dict[str, int]:
    """Return the counts above 0, by lower-case name."""
    return {state.name.lower(): count for state, count in counts.items() if count}
