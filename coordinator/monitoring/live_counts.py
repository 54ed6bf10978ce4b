"""Metrics that are counted anew at every scrape: devices, runs, rounds, and the tasks under way.

They are asked of the database, which may be away: then a scrape does without them. What they cost
grows with the fleet and with the runs that go on, not with what has been.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hfmds.domain.devices import DeviceState
from hfmds.domain.runs import Phase, Run, RunState
from hfmds.domain.tasks import TaskStage


@dataclass(frozen=True, slots=True)
class RunCensus:
    """The runs: how many are in each state, those that have not ended, and rounds of them all."""

    by_state: Mapping[RunState, int] = field(default_factory=dict)
    active: Sequence[Run] = ()
    completed_rounds: int = 0


class Census(Collector):
    """Devices, runs and rounds by state, as they are at the time of the scrape."""

    def __init__(
        self, devices: Callable[[], Mapping[DeviceState, int]], runs: Callable[[], RunCensus]
    ) -> None:
        self._devices = devices
        self._runs = runs

    def describe(self) -> Iterable[Metric]:
        return self._families({}, RunCensus())

    def collect(self) -> Iterable[Metric]:
        return self._families(self._devices(), self._runs())

    def _families(self, devices: Mapping[DeviceState, int], runs: RunCensus) -> Iterable[Metric]:
        by_device_state = GaugeMetricFamily(
            "hfmds_coordinator_devices",
            "Devices that have ever checked in, by what they are doing.",
            labels=["state"],
        )
        for device_state in DeviceState:
            by_device_state.add_metric([device_state.value], devices.get(device_state, 0))
        yield by_device_state
        by_run_state = GaugeMetricFamily(
            "hfmds_coordinator_runs", "Runs by state.", labels=["state"]
        )
        for run_state in RunState:
            by_run_state.add_metric([run_state.value], runs.by_state.get(run_state, 0))
        yield by_run_state
        yield from self._of_runs(runs)

    def _of_runs(self, runs: RunCensus) -> Iterable[Metric]:
        rounds = GaugeMetricFamily(
            "hfmds_coordinator_rounds",
            "Rounds by state: those under way by what they do, and the completed ones of all runs "
            "that are kept.",
            labels=["state"],
        )
        phases = Counter(run.progress.phase for run in runs.active if run.progress)
        for phase in Phase:
            rounds.add_metric([phase.name.lower()], phases[phase])
        rounds.add_metric(["completed"], runs.completed_rounds)
        yield rounds
        running = GaugeMetricFamily(
            "hfmds_coordinator_run_running",
            "1 for a run that goes on, 0 for one that is paused; of runs that have not ended.",
            labels=["run"],
        )
        for run in runs.active:
            running.add_metric([run.run_id], int(run.state is RunState.RUNNING))
        yield running


class UnderWay(Collector):
    """The drain, and the tasks under way by stage, as they are at the time of the scrape."""

    def __init__(
        self, drained: Callable[[], bool], stages: Callable[[], Mapping[TaskStage, int]]
    ) -> None:
        self._drained = drained
        self._stages = stages

    def describe(self) -> Iterable[Metric]:
        return self._families(False, {})

    def collect(self) -> Iterable[Metric]:
        return self._families(self._drained(), self._stages())

    def _families(self, drained: bool, stages: Mapping[TaskStage, int]) -> Iterable[Metric]:
        by_stage = GaugeMetricFamily(
            "hfmds_coordinator_tasks_pending",
            "Tasks whose results are wanted, by how far their devices are.",
            labels=["stage"],
        )
        for stage in TaskStage:
            by_stage.add_metric([stage.name.lower()], stages.get(stage, 0))
        yield by_stage
        yield GaugeMetricFamily(
            "hfmds_coordinator_drained",
            "1 while the coordinator hands out no new work by an operator's wish.",
            value=int(drained),
        )
