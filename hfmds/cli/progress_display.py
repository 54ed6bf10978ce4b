"""Shows the progress of runs: a table that changes on a terminal, lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hfmds.cli.tables.layout import add_row, new_table, state_text
from hfmds.cli.tables.runs import accuracy_of, device_accuracy_of, loss_of, phase_of, state_line
from hfmds.cli.text import NOTHING, counted, decibel, seconds, size, sparkline
from hfmds.cli.watch_run import FollowedRun
from hfmds.domain.learning import Traffic
from hfmds.domain.runs import Phase, Progress, Round, RunState

_WAITING = (Phase.WAITING_FOR_DEVICES, Phase.WAITING_FOR_STORE, Phase.MAKING_PLAN)
_WIDE_COLUMNS = 96  # width of a terminal with room for all columns


class Display(Protocol):
    """Shows runs as they change, for the time of its `with` block."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def changed(self, followed: FollowedRun, new_rounds: Sequence[Round]) -> None:
        """Show a run that has changed."""


def display_for(console: Console, runs: Sequence[FollowedRun]) -> Display:
    """Return a table for a console that can redraw, else lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveTable(console, runs)
    return PlainLines(console)


class LiveTable:
    """A table that the console redraws a few times per second."""

    def __init__(self, console: Console, runs: Sequence[FollowedRun]) -> None:
        self._runs = runs
        self._started = time.monotonic()
        self._console = console
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=4)

    def __enter__(self) -> LiveTable:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def changed(self, followed: FollowedRun, new_rounds: Sequence[Round]) -> None:
        """Do nothing: the next redraw shows the change."""

    def render(self) -> Group:
        """Return the table of the current state."""
        table = _progress_table(
            self._runs,
            wide=self._console.width >= _WIDE_COLUMNS,
            curves=not self._console.options.ascii_only,
        )
        away = {f"{followed.away} (trying again)" for followed in self._runs if followed.away}
        runs = (followed.run for followed in self._runs)
        stated_runs = [run for run in runs if run.state is RunState.PAUSED or run.state_reason]
        notes = [*(f"run {run.run_id}: {state_line(run)}" for run in stated_runs), *sorted(away)]
        return Group(
            table,
            *(Text(line, style="dim") for line in map(_outlook, self._runs) if line),
            Text(f"{seconds(time.monotonic() - self._started)}", style="dim"),
            *(Text(note, style="yellow") for note in notes),
        )


class PlainLines:
    """One line for each completed round, without control codes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._printed: dict[str, str] = {}  # last printed state, by run

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def changed(self, followed: FollowedRun, new_rounds: Sequence[Round]) -> None:
        """Print the new rounds and a new state."""
        for done in new_rounds:
            self._print(followed, _round_line(followed, done))
        progress = followed.run.progress
        state = "away" if followed.away else state_line(followed.run)
        if state == RunState.RUNNING.value and progress and progress.phase in _WAITING:
            state = progress.phase.value
        if state != self._printed.get(followed.run.run_id):
            self._printed[followed.run.run_id] = state
            self._print(followed, f"{followed.away} (trying again)" if followed.away else state)

    def _print(self, followed: FollowedRun, line: str) -> None:
        elapsed = f"{time.monotonic() - self._started:6.1f} s"
        self._console.print(escape(f"{elapsed}  {followed.label:14}  {line}"), soft_wrap=True)


def _progress_table(runs: Sequence[FollowedRun], wide: bool, curves: bool) -> Table:
    curves = curves and wide
    table = new_table()
    table.add_column("run", no_wrap=True)
    table.add_column("round", no_wrap=True, justify="right")
    table.add_column("phase", no_wrap=True, min_width=18)
    table.add_column("accuracy", no_wrap=True, justify="right")
    if curves:
        table.add_column("", no_wrap=True, min_width=10, style="green")
    for name in (*(("loss",) if wide else ()), "PSNR", "pool", "moved"):
        table.add_column(name, no_wrap=True, justify="right")
    for followed in runs:
        run, pool, traffic = followed.run, followed.pool, followed.traffic
        last = followed.rounds[-1] if followed.rounds else None
        running = run.state is RunState.RUNNING
        current = run.progress.round_number if run.progress else run.completed_rounds
        add_row(
            table,
            followed.label,
            f"{current}/{run.spec.recipe.rounds}",
            _short_phase(run.progress) if running else state_text(run.state),
            accuracy_of(last),
            *((sparkline(followed.accuracies),) if curves else ()),
            *((loss_of(last),) if wide else ()),
            decibel(pool.leakage.paired_mean if pool else None),
            str(pool.samples) if pool else NOTHING,
            size(traffic.received_bytes + traffic.sent_bytes),
        )
    return table


def _outlook(followed: FollowedRun) -> str:
    """Return accuracy and remaining time in one line; empty before round 1."""
    best, last = followed.best(), followed.rounds[-1] if followed.rounds else None
    parts = []
    if best:
        parts.append(f"best {accuracy_of(best)} after round {best.number}")
    if last and last.evaluation and last.device_evaluation:
        parts.append(
            f"by {counted(last.device_evaluation.devices, 'device')} {device_accuracy_of(last)}"
        )
    if followed.round_seconds is not None:
        parts.append(f"a round takes {seconds(followed.round_seconds)}")
    if followed.seconds_left is not None:
        parts.append(f"about {seconds(followed.seconds_left)} left")
    return f"{followed.label}: {', '.join(parts)}" if parts else ""


def _short_phase(progress: Progress | None) -> Text:
    """Return the phase in one word, which keeps the column narrow, and the finished devices."""
    if progress is None or not progress.expected:
        return Text(phase_of(progress))
    return Text(f"{progress.phase.value.split()[0]} {progress.done}/{progress.expected}")


def _round_line(followed: FollowedRun, done: Round) -> str:
    parts = [
        f"round {done.number:>3}/{followed.run.spec.recipe.rounds}",
        f"accuracy {accuracy_of(done):>7}",
        f"loss {loss_of(done)}",
    ]
    if done.evaluation and done.device_evaluation:
        parts.insert(2, f"by devices {device_accuracy_of(done):>7}")
    if done.pool:
        parts.append(f"PSNR {decibel(done.pool.leakage.paired_mean)}")
        parts.append(f"pool {done.pool.samples}{' new' if done.refreshed else ''}")
    so_far = [item.traffic for item in followed.rounds if item.number <= done.number]
    traffic = sum(so_far, Traffic())
    parts.append(f"moved {size(traffic.received_bytes + traffic.sent_bytes)}")
    parts.append(f"took {seconds(done.duration_seconds)}")
    if followed.best(up_to=done.number) is done:
        parts.append("best so far")
    return "  ".join(parts)
