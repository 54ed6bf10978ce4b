"""Summaries of runs, and the verdict on which of them is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hfmds.cli.watch_run import FollowedRun
from hfmds.domain.learning import LeakageSummary

LAST_ROUNDS = 5
"""Number of rounds whose mean accuracy counts: single rounds vary much under skew."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The numbers of a run."""

    label: str
    run_id: str
    method: str
    state: str
    learning_rate: float
    rounds: int
    final_accuracy: float | None  # mean of the last rounds, in [0, 1]
    best_accuracy: float | None
    pool_samples: int
    leakage: LeakageSummary | None  # of the last pool
    received_bytes: int  # by all devices, from coordinator and store
    sent_bytes: int
    seconds: float  # sum over its rounds; runs that share a fleet overlap

    @property
    def moved_bytes(self) -> int:
        return self.received_bytes + self.sent_bytes


def summarise(followed: FollowedRun) -> RunSummary:
    """Return the summary of a run."""
    accuracies, pool, traffic = followed.accuracies, followed.pool, followed.traffic
    recipe = followed.run.spec.recipe
    return RunSummary(
        label=followed.label,
        run_id=followed.run.run_id,
        method=recipe.method.name,
        state=followed.run.state.value,
        learning_rate=recipe.training.learning_rate,
        rounds=len(followed.rounds),
        final_accuracy=fmean(accuracies[-LAST_ROUNDS:]) if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        pool_samples=pool.samples if pool else 0,
        leakage=pool.leakage if pool else None,
        received_bytes=traffic.received_bytes,
        sent_bytes=traffic.sent_bytes,
        seconds=sum(done.duration_seconds for done in followed.rounds),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the first run beats all others, and the sentence that says so."""

    ahead: bool
    words: str


def verdict(ours: RunSummary, others: Sequence[RunSummary]) -> Verdict:
    """Compare the mean accuracy of the last rounds."""
    missing = [run.label for run in (ours, *others) if run.final_accuracy is None]
    if missing:
        return Verdict(False, f"No comparison: {', '.join(missing)} was not evaluated.")
    leads = {run.label: 100 * _lead(ours, run) for run in others}
    ahead = all(lead >= 0.05 for lead in leads.values())  # less counts as level
    parts = [
        f"{abs(lead):.1f} points {'ahead of' if lead > 0 else 'behind'} {label}"
        if abs(lead) >= 0.05
        else f"level with {label}"
        for label, lead in leads.items()
    ]
    opening = "" if ahead else "Not a win: "
    rounds = min(LAST_ROUNDS, ours.rounds)
    span = f"mean accuracy of the last {rounds} rounds" if rounds > 1 else "accuracy"
    return Verdict(
        ahead,
        f"{opening}{ours.label} is {' and '.join(parts)} ({span}, one seed).",
    )


def _lead(ours: RunSummary, other: RunSummary) -> float:
    return (ours.final_accuracy or 0.0) - (other.final_accuracy or 0.0)
