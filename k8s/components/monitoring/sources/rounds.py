"""The dashboard *Rounds*: whether runs learn, and how long it takes."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.components.monitoring.sources.panels import (
    BAD,
    FAIR,
    GOOD,
    against,
    bars,
    board,
    by_run,
    from_label,
    heat,
    lines,
    now,
    number,
    overview,
    quantile,
    query,
    row,
    window,
)

_PHASE = "hfmds_coordinator_phase_duration_seconds"
_ROUND = "hfmds_coordinator_round_duration_seconds"
_BY_ROUND = ("round", by_run("hfmds_coordinator_round_number"))
_STALENESS = "hfmds_coordinator_update_staleness_rounds"


def rounds() -> Dashboard:
    """Build the dashboard to look at first."""
    made = board(
        "hfmds-rounds",
        "Rounds",
        "Whether the runs learn, where each one stands, and how its rounds spend their time.",
        [from_label("run", "hfmds_coordinator_round_number"), window()],
    )
    _at_a_glance(made)
    _learning(made)
    _time(made)
    return made


def _at_a_glance(made: Dashboard) -> None:
    made.with_row(row("At a glance"))
    made.with_panel(
        number(
            "Alerts",
            "Our alerts that are firing. Each links to its runbook.",
            query('count(ALERTS{alertname=~"Hfmds.+", alertstate="firing"}) or vector(0)'),
            limits={1: BAD},
        )
    )
    made.with_panel(
        number(
            "Without progress",
            "The longest time since a running run got a result or ended a phase. Red: `hfmds "
            "run funnel RUN` shows where devices are lost, `hfmds audit show RUN` the last "
            "events.",
            query(
                f"max(time() - {by_run('hfmds_coordinator_run_progress_timestamp_seconds')} "
                f"and on (run) {by_run('hfmds_coordinator_run_running')} == 1)"
            ),
            unit="s",
            limits={900: FAIR, 1800: BAD},
        )
    )
    made.with_panel(
        number(
            "Running",
            "Runs at work.",
            query('max(hfmds_coordinator_runs{state="running"})'),
        )
    )
    made.with_panel(
        number(
            "Paused",
            "Runs that wait for an operator. `hfmds run list` has the reason, `hfmds run resume "
            "RUN` continues.",
            query('max(hfmds_coordinator_runs{state="paused"})'),
            limits={1: FAIR},
        )
    )
    made.with_panel(
        number(
            "Leaders",
            "Coordinators that drive runs: exactly one. With none all runs stand still. Two use "
            "different databases.",
            query("sum(hfmds_coordinator_leader)"),
            limits={1: GOOD, 2: BAD},
            below=BAD,
        )
    )
    made.with_panel(
        number(
            "Drained",
            "A drained coordinator hands out no new work. `hfmds drain --off` ends the drain.",
            query("max(hfmds_coordinator_drained)"),
            limits={1: FAIR},
            words={"0": "no", "1": "yes"},
        )
    )


def _learning(made: Dashboard) -> None:
    made.with_row(row("Learning"))
    made.with_panel(
        overview(
            "Where each run stands",
            "The last completed round of each run. Ended runs stay here for a while.",
            "run",
            {
                "round": (by_run("hfmds_coordinator_round_number"), "none"),
                "accuracy": (by_run("hfmds_coordinator_accuracy_ratio"), "percentunit"),
                "best accuracy": (by_run("hfmds_coordinator_best_accuracy_ratio"), "percentunit"),
                "loss": (by_run("hfmds_coordinator_held_out_loss"), "none"),
                "training loss": (by_run("hfmds_coordinator_training_loss"), "none"),
                "devices": (by_run("hfmds_coordinator_cohort_devices"), "none"),
                "pool": (by_run("hfmds_coordinator_pool_samples"), "none"),
            },
        )
    )
    made.with_panel(
        lines(
            "Accuracy on the held-out set",
            "One step for each round. Flat from the start: labels or normalisation do not fit. "
            "Up and down: use a lower learning rate, a larger cohort, or, with skewed data, a "
            "pool (docs/paper.md).",
            query(by_run("hfmds_coordinator_accuracy_ratio"), "{{run}}"),
            unit="percentunit",
            steps=True,
            maximum=1,
        )
    )
    made.with_panel(
        against(
            "Accuracy by round",
            "The same by round, to compare runs of different speed. It has the rounds scraped "
            "in the time shown; `hfmds run show RUN` and the web page have all.",
            "run",
            _BY_ROUND,
            ("accuracy", by_run("hfmds_coordinator_accuracy_ratio")),
            unit="percentunit",
            maximum=1,
        )
    )
    made.with_panel(
        lines(
            "Loss",
            "Cross-entropy in nats, on the held-out set and at the end of training on devices. "
            "If the first rises while the second falls, devices overfit: use fewer local "
            "epochs, or more weight on the pool (alpha).",
            query(by_run("hfmds_coordinator_held_out_loss"), "{{run}} held-out"),
            query(by_run("hfmds_coordinator_training_loss"), "{{run}} training"),
            steps=True,
        )
    )
    made.with_panel(
        against(
            "Loss by round",
            "On the held-out set, for the rounds scraped in the time shown.",
            "run",
            _BY_ROUND,
            ("loss", by_run("hfmds_coordinator_held_out_loss")),
        )
    )
    made.with_panel(
        lines(
            "Below the best round",
            "Accuracy lost since a run's best round. The best model is kept: `hfmds model "
            "export RUN --round best`.",
            query(
                f"{by_run('hfmds_coordinator_best_accuracy_ratio')} - "
                f"{by_run('hfmds_coordinator_accuracy_ratio')}",
                "{{run}}",
            ),
            unit="percentunit",
            steps=True,
            limits={0.1: BAD},
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Accuracy on devices' own data",
            "For runs that ask devices to evaluate (docs/evaluation.md). Far above the held-out "
            "set: the model fits the skew of these devices.",
            query(by_run("hfmds_coordinator_device_accuracy_ratio"), "{{run}}"),
            unit="percentunit",
            steps=True,
            maximum=1,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Round",
            "A line that stays flat for long stands still.",
            query(by_run("hfmds_coordinator_round_number"), "{{run}}"),
            steps=True,
            span=8,
        )
    )


def _time(made: Dashboard) -> None:
    made.with_row(row("Time"))
    made.with_panel(
        lines(
            "A round's time by phase",
            "Mean length of the phases that ended in the window, stacked. Much waiting: too few "
            "devices (Fleet). Long training: slow devices, so over-select or set "
            "`task_deadline_seconds`. Long sealing: the search for near duplicates.",
            query(
                f"sum by (phase) (rate({_PHASE}_sum[$window])) / (sum by (phase) "
                f"(rate({_PHASE}_count[$window])) > 0)",
                "{{phase}}",
            ),
            unit="s",
            stacked=True,
        )
    )
    made.with_panel(
        heat(
            "Rounds by how long they took",
            "A second band far above the first one: rounds that ran into their deadline.",
            f"{_ROUND}_bucket",
        )
    )
    made.with_panel(
        bars(
            "What rounds are doing now",
            "`waiting_for_store` and `waiting_for_devices` should pass. `drained` is set by an "
            "operator.",
            now('max by (state) (hfmds_coordinator_rounds{state!="completed"})', "{{state}}"),
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Why phases closed",
            "`goal-reached` is best. Many `deadline` or `gone`: too few devices answer; see the "
            "funnel (Fleet).",
            query(
                "sum by (reason) (increase(hfmds_coordinator_phases_closed_total[$window]))",
                "{{reason}}",
            ),
            stacked=True,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Length of a round",
            "The median, and the length that nine in ten rounds stay below.",
            quantile(0.5, f"{_ROUND}_bucket", "p50"),
            quantile(0.9, f"{_ROUND}_bucket", "p90"),
            unit="s",
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Devices in a round",
            "Devices whose updates made the last round. Near `minimum_devices`: rounds close at "
            "their deadline.",
            query(by_run("hfmds_coordinator_cohort_devices"), "{{run}}"),
            steps=True,
        )
    )
    made.with_panel(
        lines(
            "Staleness of asynchronous updates",
            "Age in rounds of the models that updates started from. Rising: lower `concurrency` "
            "or raise `buffer_size` (docs/rounds.md). Synchronous runs have none.",
            quantile(0.5, f"{_STALENESS}_bucket", "p50"),
            quantile(0.99, f"{_STALENESS}_bucket", "p99"),
        )
    )
