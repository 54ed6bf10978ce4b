"""Shows the progress of an experiment: bars on a terminal, else a line from time to time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hfmds.cli.text import seconds
from hfmds.experiments.trials.work_left import TimeLeft
from hfmds.experiments.trials.worker_messages import (
    Event,
    RoundDone,
    Tick,
    TrialBroke,
    TrialEnded,
    TrialStarted,
)

_LINE_SECONDS = 30.0


class ExperimentProgress:
    """Follows trials by the events of the worker pool, for the time of its `with` block."""

    def __init__(
        self, console: Console, names: Mapping[str, str], rounds: Mapping[str, int], left: TimeLeft
    ) -> None:
        self._console = console
        self._names = names
        self._rounds = rounds
        self._left = left
        self._running: dict[str, int] = {}  # rounds done, by trial
        self._ended = 0
        self._failed = 0
        self._started = self._printed = time.monotonic()
        redraws = console.is_terminal and not console.is_dumb_terminal
        self._live = (
            Live(get_renderable=self.render, console=console, refresh_per_second=2)
            if redraws
            else None
        )

    def __enter__(self) -> ExperimentProgress:
        if self._live:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, event: Event | TrialStarted | Tick) -> None:
        """Show an event."""
        match event:
            case TrialStarted(trial_id):
                self._running[trial_id] = 0
                self._left.started(trial_id)
            case RoundDone(trial_id, done):
                self._running[trial_id] = done
                self._left.round_done(trial_id, done)
            case TrialEnded(trial_id, error):
                self._end(trial_id, f"diverged: {error}" if error else "done", bool(error))
            case TrialBroke(trial_id, reason):
                self._end(trial_id, f"could not be run: {reason}", True)
        if not self._live and time.monotonic() - self._printed >= _LINE_SECONDS:
            self._printed = time.monotonic()
            running = ", ".join(self._under_way(trial_id) for trial_id in self._running)
            self._console.print(escape(f"{self._status()}; {running}"), soft_wrap=True)

    def render(self) -> Group:
        """Return the current bars."""
        bars = Table.grid(padding=(0, 1))
        bars.add_column(width=30)
        bars.add_column(no_wrap=True)
        bars.add_row(
            ProgressBar(total=1.0, completed=self._left.share_done, width=30),
            Text(self._status(), style="bold"),
        )
        for trial_id, done in self._running.items():
            bars.add_row(
                ProgressBar(total=self._rounds[trial_id], completed=done, width=30),
                Text(self._under_way(trial_id)),
            )
        return Group(bars)

    def _end(self, trial_id: str, how: str, is_bad: bool) -> None:
        self._running.pop(trial_id, None)
        self._left.ended(trial_id)
        self._ended += 1
        self._failed += is_bad
        if is_bad or not self._live:
            line = f"{self._ended}/{len(self._names)} {self._names[trial_id]}: {how}"
            self._console.print(escape(line), style="red" if is_bad else None, soft_wrap=True)

    def _under_way(self, trial_id: str) -> str:
        return f"{self._names[trial_id]}, round {self._running[trial_id]}/{self._rounds[trial_id]}"

    def _status(self) -> str:
        left = self._left.seconds()
        parts = [
            f"{self._ended} of {len(self._names)} trials",
            f"{100 * self._left.share_done:.0f} %",
            f"{seconds(time.monotonic() - self._started)} elapsed",
            f"about {seconds(left)} left" if left is not None else "time left unknown",
        ]
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)
