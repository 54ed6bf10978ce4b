"""Experiments in processes of their own: killed, stopped, resumed, and in parallel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hfmds.experiments.experiment import Experiment
from hfmds.experiments.trials.running import run_trial
from hfmds.experiments.trials.trial_folder import CHECKPOINT, RESULT, TrialFolder
from hfmds.experiments.trials.trial_plan import plan_trials
from hfmds.experiments.trials.worker_messages import (
    RoundDone,
    TrialBroke,
    TrialEnded,
    TrialStarted,
    WorkerSetup,
)
from hfmds.experiments.trials.worker_pool import TrialPool
from tests.experiments.tiny import FIELDS, a_shelf, a_trial, an_experiment, write_experiment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

# Long enough to be killed on the way; one arm that diverges must not disturb the others.
LONGER: dict[str, Any] = {
    "settings": {"rounds": 10},
    "arms": {
        **FIELDS["arms"],
        "MOON": {"method": "moon"},
        "wild": {"training.learning_rate": 1e30},
    },
}


def start(config: Path, out: Path, workers: int) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("hfmds")), "experiment", "run", str(config)]
    options = ["--out", str(out), "--workers", str(workers), "--save-seconds", "0"]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a group of its own, to be killed as a whole
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=150)
    return output


def wait_for_a_checkpoint(process: subprocess.Popen[str], out: Path, known: set[Path]) -> None:
    """Until a trial that was not under way before has been saved."""
    while process.poll() is None and not set(out.glob(f"trials/*/{CHECKPOINT}")) - known:
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be killed"


def results(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob(f"trials/*/{RESULT}")}


def undisturbed(experiment: Experiment, out: Path) -> dict[str, bytes]:
    """The results of the same trials, one after the other in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for trial in plan_trials(experiment, a_shelf()).trials.values():
        run_trial(trial, a_shelf().get(trial.data), TrialFolder(out / "trials", trial.trial_id))
    torch.set_num_threads(threads)
    return results(out)


@pytest.mark.timeout(600)  # several starts of torch
def test_killed_and_stopped_on_the_way_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    config = write_experiment(tmp_path, **LONGER)
    killed = tmp_path / "killed"
    first = start(config, killed, workers=2)
    wait_for_a_checkpoint(first, killed, set())
    os.killpg(first.pid, signal.SIGKILL)
    finish(first)
    assert len(results(killed)) < 10

    under_way = set(killed.glob(f"trials/*/{CHECKPOINT}"))
    second = start(config, killed, workers=1)
    wait_for_a_checkpoint(second, killed, under_way)
    second.send_signal(signal.SIGTERM)  # the parent alone: it stops its workers
    assert "The same command goes on from here." in finish(second)
    assert second.returncode == 130
    assert len(results(killed)) < 10

    third = start(config, killed, workers=2)
    output = finish(third)
    assert third.returncode == 0, output
    assert "10 of 10 cells" in output
    assert results(killed) == undisturbed(an_experiment(**LONGER), tmp_path / "undisturbed")
    told = json.loads((killed / "tiny-small" / "results.json").read_text())["results"]
    assert {one["arm"] for one in told if one["status"] == "failed"} == {"wild"}
    table = (killed / "tiny-small" / "table.md").read_text()
    assert "| wild | – (2 of 2 diverged) |" in table


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    trial = a_trial(a_shelf().get("digits:16"), rounds=40)
    events = []
    with TrialPool(WorkerSetup(tmp_path / "pool", tmp_path, 0.0), workers=1) as pool:
        for event in pool.run([trial]):
            if event == RoundDone(trial.trial_id, 3) and event not in events:
                kill_workers()
            events.append(event)
    assert events.count(TrialStarted(trial.trial_id)) == 2
    assert events[-1] == TrialEnded(trial.trial_id, None)
    own = TrialFolder(tmp_path / "own", trial.trial_id)
    expected = run_trial(trial, a_shelf().get("digits:16"), own)
    assert TrialFolder(tmp_path / "pool", trial.trial_id).result() == expected


def test_a_trial_that_keeps_killing_its_worker_is_given_up(tmp_path: Path) -> None:
    trial = a_trial(a_shelf().get("digits:16"))
    events = []
    with TrialPool(WorkerSetup(tmp_path, tmp_path, 0.0), workers=1) as pool:
        for event in pool.run([trial]):
            if isinstance(event, TrialStarted):
                kill_workers()
            events.append(event)
    assert isinstance(events[-1], TrialBroke)
    assert "2 times" in events[-1].reason
    assert "killed by SIGKILL" in events[-1].reason


def kill_workers() -> None:
    """Kill the workers that this process has started, once there is one."""
    for pid in wait_until(workers):
        os.kill(pid, signal.SIGKILL)


def workers() -> list[int]:
    """Return the pids of workers. One that just becomes the worker's program has no name yet."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    command_lines = {int(pid): Path("/proc", pid, "cmdline") for pid in children.split()}
    return [pid for pid, path in command_lines.items() if b"trials.worker" in path.read_bytes()]
