"""Tables of runs, rounds, models and recipe keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.table import Table

from hfmds.cli.demo.summary import LAST_ROUNDS, RunSummary
from hfmds.cli.recipe.keys import RecipeKey
from hfmds.cli.tables.layout import add_row, facts_table, new_table, state_text
from hfmds.cli.text import NOTHING, ago, counted, decibel, percent, seconds, size
from hfmds.domain.learning import LeakageSummary
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.recipe import Recipe
from hfmds.domain.round_policy import Retention, RoundPolicy
from hfmds.domain.runs import Progress, Round, Run, RunState
from hfmds.domain.validation import fields_of


def keys_table(keys: Sequence[RecipeKey]) -> Table:
    """Return one row for each key of a recipe."""
    table = new_table()
    table.add_column("key", no_wrap=True)
    for name in ("value", "default", "meaning"):
        table.add_column(name)
    for key in keys:
        meaning = key.field.description or ""
        add_row(table, key.key, key.rule, key.shown_default or NOTHING, meaning)
    return table


def runs_table(runs: Sequence[Run]) -> Table:
    """Return one row for each run."""
    table = new_table()
    table.add_column("run", overflow="fold")
    for name in ("method", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("rounds", "accuracy", "loss", "pool"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("phase")
    for run in runs:
        last = run.last_round
        add_row(
            table,
            run.run_id,
            run.spec.recipe.method.name,
            state_text(run.state),
            f"{run.completed_rounds}/{run.spec.recipe.rounds}",
            accuracy_of(last),
            loss_of(last),
            str(last.pool.samples) if last and last.pool else NOTHING,
            run.state_reason or phase_of(run.progress),
        )
    return table


def run_table(run: Run, now: datetime) -> Table:
    """Return the facts of a run as names and values."""
    recipe, policy = run.spec.recipe, run.spec.policy
    model, training, method = recipe.model, recipe.training, recipe.method
    facts = facts_table(f"run {run.run_id}")
    add_row(facts, "state", state_text(run.state))
    if run.state_reason:
        add_row(facts, "reason", run.state_reason)
    if run.progress:
        name = "now" if run.state is RunState.RUNNING else "paused in"
        add_row(facts, name, f"round {run.progress.round_number}: {phase_of(run.progress)}")
    add_row(facts, "created", f"{run.created_at:%Y-%m-%d %H:%M:%S %Z}, {ago(run.created_at, now)}")
    if run.best_round:
        add_row(facts, "best", f"round {run.best_round}")
    if run.spec.start_from:
        add_row(facts, "started from", str(run.spec.start_from))
    add_row(
        facts, "method", f"{method.name}, {counted(recipe.rounds, 'round')}, seed {recipe.seed}"
    )
    add_row(
        facts,
        "model",
        f"{model.architecture}, images {model.channels}x{model.height}x{model.width}, "
        f"{counted(model.classes, 'class', 'classes')}",
    )
    rate = f"learning rate {training.learning_rate:g}"
    if training.later_from_round:
        rate += f" ({training.later_learning_rate:g} from round {training.later_from_round} on)"
    add_row(
        facts,
        "training",
        f"batch {training.batch_size}, {counted(training.local_epochs, 'local epoch')}, "
        f"{rate}, momentum {training.momentum:g}, "
        f"weight decay {training.weight_decay:g}"
        + (f", alpha {training.alpha:g}" if method.uses_alpha else ""),
    )
    settings = dataclasses.asdict(method)
    if settings:
        words = (f"{name.replace('_', ' ')} {_shown(value)}" for name, value in settings.items())
        add_row(facts, method.name, ", ".join(words))
    chosen = [
        f"{name.replace('_', ' ')} {_shown(getattr(recipe.pool, name))}"
        for name, field in fields_of(PoolPolicy).items()
        if getattr(recipe.pool, name) != field.default
    ]
    if chosen:
        add_row(facts, "pool", ", ".join(chosen))
    for name, text in _governed(recipe, policy):
        add_row(facts, name, text)
    return facts


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _governed(recipe: Recipe, policy: RoundPolicy) -> Iterator[tuple[str, str]]:
    """Yield how the rounds of a run are governed, without settings at their default."""
    goal, sampling = recipe.cohort_size, recipe.sampling
    how_many = counted(goal, "device") if goal else "all devices"
    if goal and policy.asked(goal) > goal:
        how_many += f" ({policy.asked(goal)} are asked)"
    limits = f"deadline {seconds(policy.deadline_seconds)}, lease {seconds(policy.lease_seconds)}"
    if policy.task_deadline_seconds:
        limits += f", a task {seconds(policy.task_deadline_seconds)}"
    yield "rounds", f"{how_many}, at least {policy.minimum_devices}, {limits}"
    if sampling.strategy != "uniform":
        of = f" of {sampling.candidates} candidates" if sampling.candidates else ""
        yield "drawn", sampling.strategy.replace("_", " ") + of
    wanted = policy.eligibility
    conditions = list(wanted.labels)
    if wanted.minimum_free_memory_bytes:
        conditions.append(f"{size(wanted.minimum_free_memory_bytes)} free")
    if wanted.minimum_samples:
        conditions.append(counted(wanted.minimum_samples, "sample"))
    conditions += ["charging"] * wanted.require_charging
    conditions += ["unmetered"] * wanted.require_unmetered
    if conditions:
        yield "asked are", ", ".join(conditions)
    mode = policy.asynchronous
    if mode:
        weight = f"1 / (1 + staleness)^{mode.staleness_exponent:g}"
        age = f"at most {counted(mode.max_staleness, 'round')} old"
        devices = counted(mode.concurrency, "device") if mode.concurrency else "all devices"
        results = counted(mode.buffer_size, "result")
        yield "asynchronous", f"{results}, weighing {weight}, {age}, {devices} at work"
    evaluation, stop, retention = policy.evaluation, policy.early_stop, policy.retention
    if evaluation.devices:
        every = evaluation.every_rounds
        often = f"every {every} rounds" if every > 1 else "every round"
        yield "evaluated", f"by {counted(evaluation.devices, 'device')}, {often}"
    if stop:
        by = f" by more than {percent(stop.min_improvement)}" if stop.min_improvement else ""
        yield (
            "stops early",
            f"after {counted(stop.patience_rounds, 'evaluated round')} without improvement{by}",
        )
    if retention != Retention():
        yield "models kept", retention.describe()


def rounds_table(rounds: Sequence[Round]) -> Table:
    """Return one row for each completed round."""
    table = new_table()
    by_both = any(done.evaluation and done.device_evaluation for done in rounds)
    measured = ("accuracy", "by devices") if by_both else ("accuracy",)
    for name in ("round", "devices", *measured, "loss", "pool", "PSNR", "moved", "took"):
        table.add_column(name, no_wrap=True, justify="right")
    for done in rounds:
        pool = done.pool
        add_row(
            table,
            str(done.number),
            str(len(done.device_ids)),
            accuracy_of(done),
            *((device_accuracy_of(done),) if by_both else ()),
            loss_of(done),
            f"{pool.samples}{' new' if done.refreshed else ''}" if pool else NOTHING,
            decibel(pool.leakage.paired_mean if pool else None),
            size(done.traffic.received_bytes + done.traffic.sent_bytes),
            seconds(done.duration_seconds),
        )
    return table


def models_table(run: Run, rounds: Sequence[Round]) -> Table:
    """Return one row for each model of a run."""
    table = new_table()
    for name in ("round", "held out", "by devices", "size"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for done in rounds:
        best = "best" if done.number == run.best_round else ""
        add_row(
            table,
            str(done.number),
            percent(done.evaluation.accuracy if done.evaluation else None),
            device_accuracy_of(done),
            NOTHING if done.model_dropped else size(done.weights.size_bytes),
            "dropped" if done.model_dropped else best,
            done.weights.sha256[:12],
            style="dim" if done.model_dropped else "bold" if best else "",
        )
    return table


def comparison_table(summaries: Sequence[RunSummary]) -> Table:
    """Return runs side by side; PSNR is to the paired real image."""
    table = new_table()
    table.add_column("run", no_wrap=True)
    for name in (f"accuracy\n(last {LAST_ROUNDS})", "best\nround", "PSNR\nmean", "\np99", "\nmax"):
        table.add_column(name, no_wrap=True, justify="right")
    for name in ("pool\nimages", "moved by\ndevices"):
        table.add_column(name, no_wrap=True, justify="right")
    best = max((run.final_accuracy or 0.0 for run in summaries), default=0.0)
    for run in summaries:
        leakage = run.leakage
        paired = leakage_rows(leakage)["paired"] if leakage else (NOTHING,) * 3
        add_row(
            table,
            run.label,
            percent(run.final_accuracy),
            percent(run.best_accuracy),
            *paired,
            str(run.pool_samples or NOTHING),
            size(run.moved_bytes),
            style="bold" if run.final_accuracy == best else "",
        )
    return table


def leakage_rows(leakage: LeakageSummary) -> dict[str, tuple[str, str, str]]:
    """Return mean, p99 and max in dB, to the paired and to the nearest real image."""
    return {
        "paired": (
            decibel(leakage.paired_mean),
            decibel(leakage.paired_p99),
            decibel(leakage.paired_max),
        ),
        "nearest": (
            decibel(leakage.nearest_mean),
            decibel(leakage.nearest_p99),
            decibel(leakage.nearest_max),
        ),
    }


def state_line(run: Run) -> str:
    """Return the state in words; for a paused run with the reason and the command to resume."""
    words = run.state.value
    if run.state_reason:
        words += f": {run.state_reason}"
    if run.state is RunState.PAUSED:
        words += f" (resume it with: hfmds run resume {run.run_id})"
    return words


def phase_of(progress: Progress | None) -> str:
    """Return the phase of a run and the number of finished devices."""
    if progress is None:
        return NOTHING
    if not progress.expected:  # the phase waits for no device
        return progress.phase.value
    return f"{progress.phase.value} {progress.done}/{progress.expected}"


def accuracy_of(done: Round | None) -> str:
    """Return the accuracy of a round on held-out data, or without any that on devices."""
    return percent(done.accuracy if done else None)


def device_accuracy_of(done: Round | None) -> str:
    """Return the accuracy of a round on the devices' own data."""
    return percent(done.device_evaluation.accuracy if done and done.device_evaluation else None)


def loss_of(done: Round | None) -> str:
    """Return the mean training loss of a round."""
    return f"{done.training_loss:.3f}" if done else NOTHING
