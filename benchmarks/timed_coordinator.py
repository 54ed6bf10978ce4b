"""The coordinator with a stopwatch around each step of a round.

Benchmarks start it instead of `python -m coordinator`. When it stops, it writes `step-times.json`
beside its data folder: for each step its count, its seconds, and the seconds of those in which the
thread computed. The rest is waiting for the disk, a lock or the interpreter. Steps contain each
other and do not add up.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = (
    "coordinator.devices.registry:Registry.remember",
    "coordinator.records.tasks:TaskRecords.lease_each",
    "coordinator.records.tasks:TaskRecords.get",
    "coordinator.records.tasks:TaskRecords.get_pending",
    "coordinator.records.tasks:TaskRecords.accept_each",
    "coordinator.records.phases:PhaseRecords.open",
    "coordinator.records.phases:PhaseRecords.find",
    "coordinator.records.phases:PhaseRecords.get",
    "coordinator.records.phases:PhaseRecords.results",
    "coordinator.records.phases:PhaseRecords.unable",
    "coordinator.records.runs:RunRecords.get",
    "coordinator.records.runs:RunRecords.state",
    "coordinator.records.runs:RunRecords.complete_round",
    "coordinator.devices.assignments:WorkFinder.find",
    "coordinator.devices.uploads:Updates._judged",
    "coordinator.devices.results:ExperimentResults._accept_all",
    "coordinator.runs.checkpoints:Checkpoints.record",
    "coordinator.runs.retention:sweep",
    "coordinator.runs.remote_fleet:RemoteFleet.train",
    "coordinator.runs.content:Models.put",
    "hfmds.algorithm.methods.fedavg:FedAvgMethod.aggregate",
    "hfmds.storage.staging:Staging.take",
    "hfmds.storage.staging:Staging.append",
    "hfmds.storage.staging:Staging.commit",
    "hfmds.storage.database:_Group.commit",
    "hfmds.storage.blobs:FolderBlobs.put_bytes",
    "hfmds.storage.blobs:FolderBlobs.put_file",
    "hfmds.storage.blobs:digest_of",
    "hfmds.storage.blobs:sync_file",
    "hfmds.storage.blobs:sync_folder",
)


class Stopwatches:
    """Seconds by step, over all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])

    def attach(self, step: str) -> None:
        """Time the function named `module:name`; skip it if it does not exist."""
        module_name, _, path = step.partition(":")
        *holders, name = path.split(".")
        try:
            holder: Any = importlib.import_module(module_name)
            for each in holders:
                holder = getattr(holder, each)
            function = getattr(holder, name)
        except (ImportError, AttributeError):
            sys.stderr.write(f"cannot time {step}: it does not exist\n")
            return
        setattr(holder, name, self._timed(step, function))

    def _timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
                with self._lock:
                    total = self._totals[step]
                    total[0] += 1
                    total[1] += wall
                    total[2] += cpu

        return timed

    def write(self, path: Path) -> None:
        """Write the times."""
        path.write_text(json.dumps(self._totals))


def main() -> None:
    """Run the coordinator, then write the times."""
    from coordinator.__main__ import main as serve

    watches = Stopwatches()
    for step in STEPS:
        watches.attach(step)
    try:
        serve()
    finally:
        watches.write(Path(os.environ["HFMDS_DATA_DIR"]).parent / "step-times.json")


if __name__ == "__main__":
    main()
