"""What every gRPC server of the project measures about its calls."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Up to a minute: waiting for work is a call that the server holds open.
_DURATION_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class RpcMetrics:
    """Calls answered, their duration, and calls in flight, named after the process."""

    def __init__(self, process: str, registry: CollectorRegistry) -> None:
        prefix = f"hfmds_{process}_rpc"
        self.process = process
        self.requests = Counter(
            f"{prefix}_requests_total",
            "Calls answered, by the status code they ended with.",
            ("service", "method", "code"),
            registry=registry,
        )
        self.duration = Histogram(
            f"{prefix}_duration_seconds",
            "Time from a call's arrival to its end, waiting included.",
            ("service", "method"),
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self.in_flight = Gauge(
            f"{prefix}_in_flight",
            "Calls being answered now.",
            ("service", "method"),
            registry=registry,
        )
