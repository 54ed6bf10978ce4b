"""The dashboard *Fleet funnel*: how many devices are present, and where they are lost."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from k8s.components.monitoring.sources.panels import (
    BAD,
    FAIR,
    bars,
    board,
    from_label,
    lines,
    now,
    number,
    quantile,
    query,
    row,
    window,
)

_STAGES = ("assigned", "taken", "downloaded", "computed", "uploaded", "accepted")
_FUNNEL = "hfmds_coordinator_funnel_tasks_total"
_FAULTS = 'reason=~"deadline|gone|too-slow|stale"'
_KIND = 'kind=~"$kind"'


def fleet() -> Dashboard:
    """Build the dashboard of devices, as the coordinator sees them and as they report."""
    made = board(
        "hfmds-fleet",
        "Fleet funnel",
        "Which devices are present, how far tasks come, why devices are lost, and what work costs.",
        [from_label("kind", _FUNNEL), window()],
    )
    _at_a_glance(made)
    _funnel(made)
    _standing(made)
    _cost(made)
    _scraped(made)
    return made


def _at_a_glance(made: Dashboard) -> None:
    made.with_row(row("At a glance"))
    for state, meaning in (
        (
            "available",
            "Devices that wait for work. None: check the coordinator's name and device clocks.",
        ),
        ("working", "Devices that have a task."),
        ("away", "Devices that were present before. They get no tasks and cost nothing."),
    ):
        made.with_panel(
            number(
                state.capitalize(),
                meaning,
                query(f'max(hfmds_coordinator_devices{{state="{state}"}})'),
            )
        )
    made.with_panel(
        number(
            "Lost",
            "Share of the window's tasks that failed or were dropped by the device's fault. "
            "Above 23 % over-selection by 1.3 is not enough; `hfmds run funnel RUN` has the "
            "reasons.",
            query(_lost(f"{_KIND}")),
            unit="percentunit",
            limits={0.15: FAIR, 0.3: BAD},
            decimals=1,
        )
    )
    made.with_panel(
        number(
            "Accepted per hour",
            "Results that count.",
            query(f'3600 * sum(rate({_FUNNEL}{{stage="accepted", {_KIND}}}[$window]))'),
            decimals=0,
        )
    )
    made.with_panel(
        number(
            "Told: too late, per hour",
            "Answers to devices that their task has ended. Many: set a longer deadline, or ask "
            "fewer spare devices.",
            query("3600 * sum(rate(hfmds_coordinator_late_total[$window]))"),
            decimals=0,
        )
    )


def _funnel(made: Dashboard) -> None:
    made.with_row(row("The funnel"))
    made.with_panel(
        bars(
            "How far tasks come, over the time shown",
            "A task counts in every stage that it reached. A step down at *taken*: devices do "
            "not return. At *downloaded*: network or traffic limits. At *computed*: slow or "
            "failing devices. At *uploaded* and *accepted*: late or refused results.",
            *(
                now(f'sum(increase({_FUNNEL}{{stage="{stage}", {_KIND}}}[$__range]))', stage)
                for stage in _STAGES
            ),
        )
    )
    made.with_panel(
        lines(
            "Share of tasks that are accepted",
            "Of the tasks assigned in the window. Spare devices lower it: 77 % with "
            "over-selection by 1.3.",
            query(
                f'sum by (kind) (rate({_FUNNEL}{{stage="accepted", {_KIND}}}[$window])) '
                f'/ (sum by (kind) (rate({_FUNNEL}{{stage="assigned", {_KIND}}}[$window])) > 0)',
                "{{kind}}",
            ),
            unit="percentunit",
            limits={0.1: BAD},
        )
    )
    made.with_panel(
        lines(
            "Devices",
            "Devices by activity. A sudden fall usually is a network, a DNS name or a certificate.",
            query("max by (state) (hfmds_coordinator_devices)", "{{state}}"),
            stacked=True,
        )
    )
    made.with_panel(
        lines(
            "Tasks under way",
            "Tasks whose results are wanted, by stage.",
            query("max by (stage) (hfmds_coordinator_tasks_pending)", "{{stage}}"),
            stacked=True,
        )
    )
    made.with_panel(
        lines(
            "Failed, by cause",
            "`unsuitable`: the run does not fit its devices. `diverged`: lower the learning "
            "rate. `transfer`: look for a broken proxy. docs/operations.md explains each.",
            query(
                "sum by (cause) "
                f"(increase(hfmds_coordinator_tasks_failed_total{{{_KIND}}}[$window]))",
                "{{cause}}",
            ),
            stacked=True,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Dropped, by reason",
            "`goal-reached` are spare devices, which is normal. `gone`: they vanished. "
            "`deadline`, `too-slow`: they need more time.",
            query(
                "sum by (reason) "
                f"(increase(hfmds_coordinator_tasks_dropped_total{{{_KIND}}}[$window]))",
                "{{reason}}",
            ),
            stacked=True,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Late and refused",
            "Answers that a task has ended, and unusable updates. `hfmds audit show RUN --kind "
            "task` names the devices of refused ones.",
            query(
                "sum by (reason) (increase(hfmds_coordinator_late_total[$window]))",
                "late: {{reason}}",
            ),
            query(
                "sum by (reason) (increase(hfmds_coordinator_updates_refused_total[$window]))",
                "refused: {{reason}}",
            ),
            stacked=True,
            span=8,
        )
    )


def _standing(made: Dashboard) -> None:
    made.with_row(row("Members"))
    made.with_panel(
        lines(
            "Standing",
            "Devices in the fleet's books. `hfmds pki devices` names revoked and quarantined "
            "ones with the reason; `hfmds pki release` ends a quarantine.",
            query("max by (standing) (hfmds_coordinator_members)", "{{standing}}"),
            steps=True,
        )
    )
    made.with_panel(
        lines(
            "Certificates of devices",
            "The newest certificate of each enrolled device. Devices renew after two thirds of "
            "its life, so an `expiring` one is off or fails to renew. Many at once: the device "
            "issuer ends, or devices cannot reach the coordinator. An `expired` device can come "
            "back for 90 days (docs/security.md).",
            query("max by (state) (hfmds_coordinator_member_certificates)", "{{state}}"),
            stacked=True,
        )
    )


def _cost(made: Dashboard) -> None:
    made.with_row(row("Cost, as devices report it"))
    for metric, title, meaning in (
        (
            "compute_seconds",
            "Time to compute a task",
            "The median and the 90th percentile. A round waits for the latter.",
        ),
        (
            "step_seconds",
            "Time of a step",
            "One batch of training, or one step of synthesis.",
        ),
    ):
        buckets = f"hfmds_coordinator_fleet_{metric}_bucket{{{_KIND}}}"
        made.with_panel(
            lines(
                title,
                meaning,
                quantile(0.5, buckets, "{{kind}} p50", "kind, le"),
                quantile(0.9, buckets, "{{kind}} p90", "kind, le"),
                unit="s",
                span=8,
            )
        )
    made.with_panel(
        lines(
            "Processor time of a task",
            "Processor seconds for each report, a proxy for energy.",
            query(
                "sum by (kind) "
                f"(rate(hfmds_coordinator_fleet_cpu_seconds_total{{{_KIND}}}[$window])) "
                "/ (sum by (kind) "
                f"(rate(hfmds_coordinator_fleet_reports_total{{{_KIND}}}[$window])) > 0)",
                "{{kind}}",
            ),
            unit="s",
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Bytes of accepted tasks",
            "Bytes that devices received and sent. Much received: enlarge their caches. Much "
            "sent: use `--compression`.",
            query("sum(rate(hfmds_coordinator_device_received_bytes_total[$window]))", "received"),
            query("sum(rate(hfmds_coordinator_device_sent_bytes_total[$window]))", "sent"),
            unit="Bps",
        )
    )
    made.with_panel(
        lines(
            "Peak memory",
            "The median, and the memory that 99 in 100 devices stay below. A device without "
            "that much gives the task up as unsuitable.",
            quantile(0.5, "hfmds_coordinator_fleet_peak_memory_bytes_bucket", "p50"),
            quantile(0.99, "hfmds_coordinator_fleet_peak_memory_bytes_bucket", "p99"),
            unit="bytes",
        )
    )


def _scraped(made: Dashboard) -> None:
    made.with_row(row("Devices that Prometheus scrapes, such as simulated ones"))
    made.with_panel(
        lines(
            "Tasks, by how they ended",
            "Counted by the devices themselves.",
            query(
                f"sum by (kind, outcome) (increase(hfmds_edge_tasks_total{{{_KIND}}}[$window]))",
                "{{kind}} {{outcome}}",
            ),
            stacked=True,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Devices that reach their peers",
            "Share of devices whose last call was answered.",
            query("avg by (peer) (hfmds_edge_peer_up)", "{{peer}}"),
            unit="percentunit",
            maximum=1,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Processors in use",
            "Processors that all devices together use for tasks.",
            query(
                f"sum by (kind) (rate(hfmds_edge_cpu_seconds_total{{{_KIND}}}[$window]))",
                "{{kind}}",
            ),
            stacked=True,
            span=8,
        )
    )


def _lost(matchers: str) -> str:
    failed = f"sum(rate(hfmds_coordinator_tasks_failed_total{{{matchers}}}[$window]))"
    dropped = f"sum(rate(hfmds_coordinator_tasks_dropped_total{{{matchers}, {_FAULTS}}}[$window]))"
    assigned = f'sum(rate({_FUNNEL}{{stage="assigned", {matchers}}}[$window]))'
    return f"({failed} + {dropped}) / ({assigned} > 0)"
