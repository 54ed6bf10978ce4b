"""Gauges that the coordinator reads from its database: devices, runs, rounds, tasks, members.

A task of the event loop refreshes the counts every few seconds, and scrapes show the last ones. So
a scrape never waits for the database. If the database does not answer for some time, scrapes go
without these counts and show what the process counts by itself.

The cost of a refresh grows with the fleet and with the active runs, not with the history.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import prometheus_client
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coordinator.monitoring.member_counts import MemberCounts
from hfmds.domain.devices import DeviceState
from hfmds.domain.runs import Phase, Run, RunState
from hfmds.domain.tasks import TaskStage

log = logging.getLogger(__name__)

_REFRESH_SECONDS = 2.0
_SHOWN_SECONDS = 15.0  # how long scrapes show counts that cannot be refreshed


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The numbers of runs by state, the runs that have not ended, and the completed rounds."""

    by_state: Mapping[RunState, int] = field(default_factory=dict)
    active: Sequence[Run] = ()
    completed_rounds: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What the database says at one moment."""

    devices: Mapping[DeviceState, int] = field(default_factory=dict)
    runs: RunCounts = field(default_factory=RunCounts)
    pending_tasks: Mapping[TaskStage, int] = field(default_factory=dict)
    drained: bool = False
    members: MemberCounts = field(default_factory=MemberCounts)


class LiveCounts(Collector):
    """Shows the counts that were last read."""

    def __init__(
        self,
        read: Callable[[], Counts],
        registry: CollectorRegistry,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` may block, and may raise while the database is away."""
        self._read = read
        self._monotonic = monotonic
        self._counts: Counts | None = None
        self._read_at = 0.0
        failures = prometheus_client.Counter(
            "hfmds_coordinator_scrape_failures_total",
            "Times that a part of the metrics was missing at a scrape, because the database was "
            "away or too slow.",
            ("part",),
            registry=registry,
        )
        self._failures = failures.labels("counts")
        registry.register(self)

    def refresh(self) -> None:
        """Read the counts. Blocks."""
        try:
            self._counts = self._read()
        except Exception as error:  # noqa: BLE001  # the next refresh tries again
            if self._counts is not None:
                log.warning("the metrics that the database counts are missing: %s", error)
            self._counts = None
        else:
            self._read_at = self._monotonic()

    @asynccontextmanager
    async def refreshing(self) -> AsyncIterator[None]:
        """Refresh the counts before the block, and every few seconds inside it."""
        await asyncio.to_thread(self.refresh)
        refreshing = asyncio.create_task(self._keep_refreshing())
        try:
            yield
        finally:
            refreshing.cancel()

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            await asyncio.to_thread(self.refresh)

    def describe(self) -> Iterable[Metric]:
        return _families(Counts())

    def collect(self) -> Iterable[Metric]:
        counts = self._counts
        if counts is None or self._monotonic() - self._read_at > _SHOWN_SECONDS:
            self._failures.inc()
            return ()
        return _families(counts)


def _families(counts: Counts) -> Iterator[Metric]:
    devices = _gauge("devices", "Devices that have ever checked in, by what they do.", "state")
    for device_state in DeviceState:
        devices.add_metric([device_state.value], counts.devices.get(device_state, 0))
    yield devices
    yield from _run_families(counts.runs)
    tasks = _gauge(
        "tasks_pending",
        "Tasks whose results the coordinator wants, by the stage that their devices have reached.",
        "stage",
    )
    for stage in TaskStage:
        tasks.add_metric([stage.name.lower()], counts.pending_tasks.get(stage, 0))
    yield tasks
    drained = _gauge("drained", "1 while an operator has drained the coordinator.")
    drained.add_metric([], int(counts.drained))
    yield drained
    yield from _member_families(counts.members)


def _run_families(runs: RunCounts) -> Iterator[Metric]:
    states = _gauge("runs", "Runs by state.", "state")
    for run_state in RunState:
        states.add_metric([run_state.value], runs.by_state.get(run_state, 0))
    yield states
    rounds = _gauge(
        "rounds",
        "Rounds by state: those under way by phase, and the completed rounds of all kept runs.",
        "state",
    )
    phases = Counter(run.progress.phase for run in runs.active if run.progress)
    for phase in Phase:
        rounds.add_metric([phase.name.lower()], phases[phase])
    rounds.add_metric(["completed"], runs.completed_rounds)
    yield rounds
    running = _gauge(
        "run_running",
        "1 for a running run, 0 for a paused one; only runs that have not ended.",
        "run",
    )
    for run in runs.active:
        running.add_metric([run.run_id], int(run.state is RunState.RUNNING))
    yield running


def _member_families(counts: MemberCounts) -> Iterator[Metric]:
    members = _gauge(
        "members",
        "Devices by standing: enrolled (and neither in quarantine nor revoked), in quarantine, "
        "revoked.",
        "standing",
    )
    for standing in ("enrolled", "quarantined", "revoked"):
        members.add_metric([standing], getattr(counts, standing))
    yield members
    certificates = _gauge(
        "member_certificates",
        "Newest certificates of devices that are not revoked, by state. A certificate is expiring "
        "when less than a fifth of its time remains: its device did not renew it.",
        "state",
    )
    for state in ("good", "expiring", "expired"):
        certificates.add_metric([state], getattr(counts, state))
    yield certificates


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hfmds_coordinator_{name}", meaning, labels=labels)
