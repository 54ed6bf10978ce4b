"""Metrics of gRPC calls, the same for every server of the project."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from hfmds.service.limits.throttle import REASONS

# Up to a minute: the server holds calls open that wait for work.
_DURATION_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

# Series that exist from the start, as 0. Otherwise a rate would miss the first error.
_SHOWN_AT_ONCE = ("OK", "INTERNAL", "UNAVAILABLE")


class RpcMetrics:
    """Calls, their duration and bytes, and calls in flight. Names begin with the process."""

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
            "Time from a call's arrival to its end, including waits.",
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
        self.received_bytes = Counter(
            f"{prefix}_received_bytes_total",
            "Size of the messages that callers sent, without what TLS and HTTP/2 add.",
            ("service", "method"),
            registry=registry,
        )
        self.sent_bytes = Counter(
            f"{prefix}_sent_bytes_total",
            "Size of the messages that callers were sent, without what TLS and HTTP/2 add.",
            ("service", "method"),
            registry=registry,
        )
        self.refused = Counter(
            f"{prefix}_refused_total",
            "Calls refused as too many or too slow, by what was too much.",
            ("reason",),
            registry=registry,
        )
        for reason in REASONS:
            self.refused.labels(reason)
        # A search for a series by its labels takes longer than counting.
        self.of = lru_cache(maxsize=None)(self._method)

    def refuse(self, reason: str) -> None:
        """Count a refused call."""
        self.refused.labels(reason).inc()

    def _method(self, service: str, method: str) -> MethodMetrics:
        return MethodMetrics(self, service, method)

    def show(self, service: str, methods: Iterable[str]) -> None:
        """Create the series of these methods before the first call."""
        for method in methods:
            series = self.of(service, method)
            for code in _SHOWN_AT_ONCE:
                series.answered(code)


class MethodMetrics:
    """The series of one method of the server."""

    __slots__ = ("answered", "duration", "in_flight", "received_bytes", "sent_bytes")

    def __init__(self, metrics: RpcMetrics, service: str, method: str) -> None:
        def answered(code: str) -> Counter:
            return metrics.requests.labels(service, method, code)

        self.answered = lru_cache(maxsize=None)(answered)
        self.duration = metrics.duration.labels(service, method)
        self.in_flight = metrics.in_flight.labels(service, method)
        self.received_bytes = metrics.received_bytes.labels(service, method)
        self.sent_bytes = metrics.sent_bytes.labels(service, method)
