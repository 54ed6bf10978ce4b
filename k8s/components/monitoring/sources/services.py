"""The dashboard *Services/RPC*: whether programs answer, how fast, and what they use."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.builders.prometheus import Dataquery

from k8s.components.monitoring.sources.panels import (
    BAD,
    FAIR,
    bars,
    board,
    from_label,
    heat,
    lines,
    now,
    number,
    quantile,
    query,
    row,
)

_SERVERS = "hfmds_(coordinator|store)"
_FAULTS = ', code=~"INTERNAL|UNKNOWN|UNAVAILABLE|DATA_LOSS"'
_NOT_OK = ', code!="OK"'
# The time of calls that wait says nothing about the speed of a server.
_QUICK = 'service=~"$service", method!~"CheckIn|WatchRun"'
_BUCKETS = f'{{__name__=~"{_SERVERS}_rpc_duration_seconds_bucket", {_QUICK}}}'
_OURS = f'on (instance) {{__name__=~"{_SERVERS}_build_info"}}'


def services() -> Dashboard:
    """Build the dashboard of the coordinator and the store as servers."""
    made = board(
        "hfmds-services",
        "Services/RPC",
        "Rate, errors and duration of calls to the coordinator and the synthesis store, and the "
        "resources of both.",
        [from_label("service", f'{{__name__=~"{_SERVERS}_rpc_requests_total"}}')],
    )
    _at_a_glance(made)
    _calls(made)
    _processes(made)
    return made


def _at_a_glance(made: Dashboard) -> None:
    made.with_row(row("At a glance"))
    for program, name in (("Coordinators", "coordinator"), ("Stores", "store")):
        made.with_panel(
            number(
                program,
                "Programs that answer Prometheus. Too few: `kubectl -n hfmds get pods`, "
                "docs/runbooks.md#program-gone.",
                query(f"count(hfmds_{name}_build_info) or vector(0)"),
                limits={1: "green"},
                below=BAD,
            )
        )
    made.with_panel(
        number(
            "Calls",
            "Answered calls per second.",
            query(f"sum({_rate('requests_total')})"),
            unit="reqps",
        )
    )
    made.with_panel(
        number(
            "Errors",
            "Share of calls that failed by the server's fault. The budget is 0.1 %; "
            "docs/runbooks.md#error-budget.",
            query(f"max({_error_ratio('service')})"),
            unit="percentunit",
            limits={0.001: FAIR, 0.0144: BAD},
            decimals=2,
        )
    )
    made.with_panel(
        number(
            "p99",
            "99 in 100 calls take less. Calls that wait for work or watch a run do not count.",
            _quantile(0.99),
            unit="s",
            limits={1: FAIR, 5: BAD},
        )
    )
    made.with_panel(
        number(
            "Certificate",
            "Time until the first server certificate expires; "
            "docs/runbooks.md#certificate-expiring. None: no TLS.",
            query(f'min({{__name__=~"{_SERVERS}_certificate_expiry_timestamp_seconds"}} - time())'),
            unit="s",
            limits={86400: FAIR, 604800: "green"},
            below=BAD,
        )
    )


def _calls(made: Dashboard) -> None:
    made.with_row(row("Calls"))
    made.with_panel(
        lines(
            "Rate, by method",
            "Answered calls per second. CheckIn far above the others: devices find no work; "
            "`HFMDS_CHECK_INS_PER_SECOND` limits it.",
            query(f"sum by (method) ({_rate('requests_total')})", "{{method}}"),
            unit="reqps",
            stacked=True,
        )
    )
    made.with_panel(
        lines(
            "Not OK, by code",
            "INTERNAL: a bug or the database; see the log. UNAVAILABLE: full or stopping. "
            "RESOURCE_EXHAUSTED: a limit. ABORTED: late results, which is normal. "
            "PERMISSION_DENIED, UNAUTHENTICATED: certificates, or an attack.",
            query(f"sum by (code) ({_rate('requests_total', _NOT_OK)})", "{{code}}"),
            unit="reqps",
            stacked=True,
        )
    )
    made.with_panel(
        lines(
            "Errors of the server",
            "Share of calls. Dashed: the budget of 99.9 %, and 14.4 times its rate, which uses "
            "it up in two days.",
            query(_error_ratio("service"), "{{service}}"),
            unit="percentunit",
            limits={0.001: FAIR, 0.0144: BAD},
        )
    )
    made.with_panel(
        heat(
            "Calls by how long they took",
            "Without calls that wait. A band that rises with the number of calls: use more "
            "replicas or a faster database.",
            _BUCKETS,
        )
    )
    made.with_panel(
        lines(
            "p50, by method",
            "Half of the calls take less.",
            _quantile(0.5, "method, le"),
            unit="s",
            span=8,
        )
    )
    made.with_panel(
        lines(
            "p99, by method",
            "99 in 100 calls take less. Uploads and downloads take as long as the caller's "
            "network needs.",
            _quantile(0.99, "method, le"),
            unit="s",
            span=8,
        )
    )
    made.with_panel(
        lines(
            "In flight, by method",
            "Calls under way. CheckIn: waiting devices, which cost little. The server refuses "
            "calls above `HFMDS_MAX_CONCURRENT_RPCS`.",
            query(
                f'sum by (method) ({{__name__=~"{_SERVERS}_rpc_in_flight", service=~"$service"}})',
                "{{method}}",
            ),
            stacked=True,
            span=8,
        )
    )
    for what, title in (("received", "Received, by method"), ("sent", "Sent, by method")):
        made.with_panel(
            lines(
                title,
                "Bytes of messages. Devices cache what they fetched: many downloads of one "
                "snapshot mean small caches.",
                query(f"sum by (method) ({_rate(f'{what}_bytes_total')})", "{{method}}"),
                unit="Bps",
                stacked=True,
                span=8,
            )
        )
    made.with_panel(
        lines(
            "Refused as too many or too slow",
            "Calls refused per second, before any work; docs/runbooks.md#calls-refused.",
            query(
                f'sum by (reason) (rate({{__name__=~"{_SERVERS}_rpc_refused_total"}}'
                "[$__rate_interval]))",
                "{{reason}}",
            ),
            unit="reqps",
            stacked=True,
            span=8,
        )
    )


def _processes(made: Dashboard) -> None:
    made.with_row(row("Processes"))
    made.with_panel(
        lines(
            "Processors in use",
            "A coordinator at one all the time is at its limit: add replicas. Peaks at the end "
            "of rounds are averaging and evaluation.",
            query(
                f"rate(process_cpu_seconds_total[$__rate_interval]) and {_OURS}",
                "{{job}} {{instance}}",
            ),
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Memory",
            "Resident memory. Endless growth over days is a leak: report it. Near the pod's "
            "limit: raise the limit.",
            query(f"process_resident_memory_bytes and {_OURS}", "{{job}} {{instance}}"),
            unit="bytes",
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Open files",
            "Share of the files that the process may open. Each waiting device holds one.",
            query(f"process_open_fds / process_max_fds and {_OURS}", "{{job}} {{instance}}"),
            unit="percentunit",
            limits={0.8: BAD},
            span=8,
        )
    )
    made.with_panel(
        bars(
            "Disk left",
            "Free share of the disks of data and content. Content in S3 has none. Red: "
            "docs/runbooks.md#store-full.",
            now(
                f'{{__name__=~"{_SERVERS}_disk_free_bytes"}} '
                f'/ {{__name__=~"{_SERVERS}_disk_size_bytes"}}',
                "{{job}} {{instance}} {{place}}",
            ),
            unit="percentunit",
            limits={0.03: FAIR, 0.15: "green"},
            below=BAD,
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Who leads",
            "1 for the coordinator that drives the runs. Many changes: the database is slow, "
            "docs/runbooks.md#leadership-unsteady.",
            query("hfmds_coordinator_leader", "{{instance}}"),
            steps=True,
            span=8,
        )
    )
    made.with_panel(
        bars(
            "Versions",
            "Processes by version. Two versions for long: an upgrade stopped half-way.",
            now(
                'count by (job, version) ({__name__=~"hfmds_(coordinator|store|edge)_build_info"})',
                "{{job}} {{version}}",
            ),
            span=8,
        )
    )
    made.with_panel(
        lines(
            "Ready",
            "1 while the program takes calls. 0 for long: the database or the content does not "
            "answer, docs/runbooks.md#not-ready.",
            query(f'{{__name__=~"{_SERVERS}_ready"}}', "{{job}} {{instance}}"),
            steps=True,
            maximum=1,
        )
    )
    made.with_panel(
        lines(
            "Metrics that are missing",
            "Scrapes in five minutes without a part, because the database was away or slow. "
            "Panels on that part have gaps, docs/runbooks.md#not-ready.",
            query(
                f'sum by (job, part) (increase({{__name__=~"{_SERVERS}_scrape_failures_total"}}'
                "[5m]))",
                "{{job}} {{part}}",
            ),
        )
    )


def _rate(what: str, matchers: str = "") -> str:
    selector = f'{{__name__=~"{_SERVERS}_rpc_{what}", service=~"$service"{matchers}}}'
    return f"rate({selector}[$__rate_interval])"


def _error_ratio(labels: str) -> str:
    answered = f"sum by ({labels}) ({_rate('requests_total')})"
    failed = f"sum by ({labels}) ({_rate('requests_total', _FAULTS)})"
    # Before the first failure there is no series of failures; the share is then 0, not unknown.
    return f"({failed} or 0 * {answered}) / ({answered} > 0)"


def _quantile(share: float, by: str = "le") -> Dataquery:
    return quantile(share, _BUCKETS, "{{method}}", by, over="$__rate_interval")
