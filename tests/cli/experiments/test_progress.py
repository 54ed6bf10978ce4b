"""Progress output of trials."""

import io

from rich.console import Console

from hfmds.cli.experiments.progress import ExperimentProgress
from hfmds.experiments.trials.work_left import TimeLeft, TrialWork
from hfmds.experiments.trials.worker_messages import (
    RoundDone,
    Tick,
    TrialBroke,
    TrialEnded,
    TrialStarted,
)
from tests.experiments.tiny import a_trial


def a_progress(console: Console) -> ExperimentProgress:
    work = TrialWork(a_trial(), train_images=120, test_images=60)
    names = {"a": "FedAvg, seed 0", "b": "MOON, seed 0", "c": "FedGen [x], seed 0"}
    time_left = TimeLeft(dict.fromkeys(names, work), workers=2)
    return ExperimentProgress(console, names, dict.fromkeys(names, 4), time_left)


def test_without_a_terminal_there_is_a_line_for_each_trial() -> None:
    console = Console(file=io.StringIO(), width=200)
    with a_progress(console) as progress:
        progress.show(TrialStarted("a"))
        progress.show(RoundDone("a", 1))
        progress.show(Tick())
        progress.show(TrialEnded("a", None))
        progress.show(TrialEnded("b", "round 2: training diverged"))
        progress.show(TrialBroke("c", "no memory"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "1/3 FedAvg, seed 0: done",
        "2/3 MOON, seed 0: diverged: round 2: training diverged",
        "3/3 FedGen [x], seed 0: could not be run: no memory",
    ]


def test_on_a_terminal_there_are_bars() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    progress = a_progress(console)
    progress.show(TrialStarted("a"))
    progress.show(RoundDone("a", 1))
    progress.show(TrialStarted("c"))
    with console.capture() as captured:
        console.print(progress.render())
    shown = captured.get()
    assert "0 of 3 trials" in shown
    assert "time left unknown" in shown
    assert "FedAvg, seed 0, round 1/4" in shown
    assert "FedGen [x], seed 0, round 0/4" in shown
