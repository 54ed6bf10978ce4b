"""Runs an experiment for `hfmds experiment`: plans, runs missing trials, writes the report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from hfmds.cli.experiments.progress import ExperimentProgress
from hfmds.cli.text import counted
from hfmds.errors import ConfigurationError, Unavailable
from hfmds.experiments.loading import load
from hfmds.experiments.report.measurements import measure
from hfmds.experiments.report.outline import Outline
from hfmds.experiments.report.report_folder import ReportFolder, write_report
from hfmds.experiments.report.split_plot import draw_split
from hfmds.experiments.trials.loaded_data import DataShelf
from hfmds.experiments.trials.trial import Trial
from hfmds.experiments.trials.trial_folder import TrialFolder
from hfmds.experiments.trials.trial_plan import plan_trials
from hfmds.experiments.trials.work_left import TimeLeft, TrialWork
from hfmds.experiments.trials.worker_messages import TrialBroke, WorkerSetup
from hfmds.experiments.trials.worker_pool import TrialPool


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `hfmds experiment run`."""

    name: str
    size: str
    data: str | None
    data_root: Path
    download: bool
    seeds: tuple[int, ...] | None
    out: Path
    workers: int | None
    compute_device: str
    only: tuple[str, ...]
    save_seconds: float


def run_experiment(console: Console, options: RunOptions) -> None:
    """Run the missing trials of an experiment and write its report."""
    experiment = load(options.name).experiment(options.size)
    if options.seeds is not None:
        experiment = experiment.with_seeds(options.seeds)
    arms = experiment.require_arms(options.only) or tuple(experiment.arms)
    shelf = DataShelf(
        options.data_root, download=options.download, progress=_ReadingNotice(console).report
    )
    plan = plan_trials(experiment, shelf, options.data, options.compute_device)
    folder = ReportFolder(options.out, experiment.name, options.size)
    try:
        folder.keep_outline(plan.outline)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {folder.path}: {error.strerror}; choose another --out"
        ) from error
    setup = WorkerSetup(folder.trials, options.data_root, options.save_seconds)
    workers = options.workers or _cores()
    with _signals_interrupt():
        broken = _run_trials(console, plan.outline, plan.trials_of(arms), setup, workers)
        measure(plan, folder.path, folder.trials, shelf, console.print)
    _report(console, folder)
    if broken:
        raise Unavailable(
            f"{counted(broken, 'trial')} could not be run, see above; the other results are stored"
        )


def report_experiment(console: Console, name: str, size: str, out: Path) -> None:
    """Write the report from stored results."""
    _report(console, ReportFolder(out, Path(name).stem, size))


def _run_trials(
    console: Console,
    outline: Outline,
    trials: Sequence[Trial],
    setup: WorkerSetup,
    workers: int,
) -> int:
    """Run the trials without a result; return how many of them could not be run."""
    missing = [t for t in trials if TrialFolder(setup.results, t.trial_id).result() is None]
    workers = min(workers, len(missing))
    console.print(
        f"{counted(len(trials), 'trial')}, {len(trials) - len(missing)} of them already done; "
        f"{workers} at a time, in {escape(str(setup.results))}",
        soft_wrap=True,
    )
    if not missing:
        return 0
    sizes = {info["sha256"]: info for info in outline.data.values()}
    works = {
        t.trial_id: TrialWork(
            t, sizes[t.data_digest]["train_images"], sizes[t.data_digest]["test_images"]
        )
        for t in missing
    }
    progress = ExperimentProgress(
        console,
        names=_names(outline, missing),
        rounds={t.trial_id: t.recipe.rounds for t in missing},
        left=TimeLeft(works, workers),
    )
    broken = 0
    with TrialPool(setup, workers) as pool, progress:
        for event in pool.run(missing):
            progress.show(event)
            broken += isinstance(event, TrialBroke)
    return broken


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _names(outline: Outline, trials: Sequence[Trial]) -> dict[str, str]:
    """Name each trial by the first cell of the table that it is for."""
    names: dict[str, str] = {}
    for cell in outline.cells:
        swept = "" if cell.value is None else f", {cell.value}"
        names.setdefault(cell.trial_id, f"{cell.arm}, {cell.split}{swept}, seed {cell.seed}")
    return {trial.trial_id: names[trial.trial_id] for trial in trials}


def _report(console: Console, folder: ReportFolder) -> None:
    results = write_report(folder, draw_split)
    done = f"{results.done} of {len(results.cells)} cells"
    console.print(f"{done}; the report is in {folder.path}", soft_wrap=True, markup=False)


class _ReadingNotice:
    """Prints a line when images are read, which may take long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._announced: set[str] = set()

    def report(self, part: str, done: int, total: int) -> None:
        if part not in self._announced:
            self._announced.add(part)
            self._console.print(f"reading {total} {part} images")


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop the command like Ctrl-C: workers save their state."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handled_signals = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # `nohup` makes a process ignore SIGHUP
    ]
    before = {number: signal.signal(number, interrupt) for number in handled_signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
