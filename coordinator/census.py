"""Metrics that are counted anew at every scrape: devices, runs, rounds, and the tasks under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hfmds.wire.types import Device, DeviceState, Phase, Run, RunState, TaskStage


class Census(Collector):
    """Devices, runs and rounds by state, as they are at the time of the scrape."""

    def __init__(
        self, devices: Callable[[], Sequence[Device]], runs: Callable[[], Sequence[Run]]
    ) -> None:
        self._devices = devices
        self._runs = runs

    def describe(self) -> Iterable[Metric]:
        return self._families([], [])

    def collect(self) -> Iterable[Metric]:
        return self._families(self._devices(), self._runs())

    def _families(self, devices: Sequence[Device], runs: Sequence[Run]) -> Iterable[Metric]:
        by_device_state = GaugeMetricFamily(
            "hfmds_coordinator_devices",
            "Devices that have ever checked in, by what they are doing.",
            labels=["state"],
        )
        device_states = Counter(device.state for device in devices)
        for device_state in DeviceState:
            by_device_state.add_metric([device_state.value], device_states[device_state])
        yield by_device_state
        by_run_state = GaugeMetricFamily(
            "hfmds_coordinator_runs", "Runs by state.", labels=["state"]
        )
        run_states = Counter(run.state for run in runs)
        for run_state in RunState:
            by_run_state.add_metric([run_state.value], run_states[run_state])
        yield by_run_state
        yield from self._of_runs(runs)

    def _of_runs(self, runs: Sequence[Run]) -> Iterable[Metric]:
        rounds = GaugeMetricFamily(
            "hfmds_coordinator_rounds",
            "Rounds by state: those under way by what they do, and the completed ones of all runs "
            "that are kept.",
            labels=["state"],
        )
        active = [run for run in runs if not run.state.ended]
        phases = Counter(run.progress.phase for run in active if run.progress)
        for phase in Phase:
            rounds.add_metric([phase.name.lower()], phases[phase])
        rounds.add_metric(["completed"], sum(run.completed_rounds for run in runs))
        yield rounds
        running = GaugeMetricFamily(
            "hfmds_coordinator_run_running",
            "1 for a run that goes on, 0 for one that is paused; of runs that have not ended.",
            labels=["run"],
        )
        for run in active:
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
