"""Spans by OpenTelemetry, sent to a collector by OTLP over gRPC. Imported only for tracing.

OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG set the share of traced rounds. All programs choose
the same rounds, because the id of a trace follows from its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hfmds.service.monitoring.tracing import TRACEPARENT, SpanPlace
from hfmds.service.process.address import is_loopback

_SEND_SECONDS = 5  # the longest delay of a program's end by a collector that is away
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8
_NOWHERE = Context()

_PROPAGATOR = TraceContextTextMapPropagator()


def open_backend(endpoint: str, service: str, version: str) -> OtelBackend:
    """Open a backend that sends spans to the collector at an http:// or https:// address."""
    parts = urlsplit(endpoint)
    # A proxy from the environment cannot reach this machine's loopback.
    proxy = 0 if is_loopback(parts.hostname or "") else 1
    exporter = OTLPSpanExporter(
        endpoint=endpoint,
        insecure=parts.scheme == "http",
        timeout=_SEND_SECONDS,
        channel_options=(("grpc.enable_http_proxy", proxy),),  # type: ignore[arg-type]
    )
    return OtelBackend(exporter, service, version)


class OtelBackend:
    """Makes spans, and sends them in batches from a thread of its own."""

    def __init__(self, exporter: SpanExporter, service: str, version: str) -> None:
        described = Resource.create(
            {"service.namespace": "hfmds", "service.name": service, "service.version": version}
        )
        self._provider = TracerProvider(
            resource=described, id_generator=_NamedIds(), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("hfmds")

    @contextmanager
    def span(self, name: str, parent: str, attributes: dict[str, str | int]) -> Iterator[None]:
        around = _PROPAGATOR.extract({TRACEPARENT: parent}) if parent else None
        if not trace.get_current_span(around).get_span_context().is_valid:
            yield
            return
        with self._tracer.start_as_current_span(
            name,
            around,
            attributes=_named(attributes),
            record_exception=False,  # its text might quote data of a device
            set_status_on_exception=False,
        ) as open_span:
            try:
                yield
            except BaseException as error:
                open_span.set_attribute("error.type", type(error).__name__)
                open_span.set_status(Status(StatusCode.ERROR))
                raise

    def begin(
        self, name: str, place: SpanPlace, attributes: dict[str, str | int]
    ) -> _SurroundingSpan:
        around = _NOWHERE
        if place.parent:
            known = NonRecordingSpan(self._context(place.trace, place.parent))
            around = trace.set_span_in_context(known, _NOWHERE)
        wanted = _WANTED.set(place)
        try:
            return _SurroundingSpan(
                self._tracer.start_span(name, around, attributes=_named(attributes))
            )
        finally:
            _WANTED.reset(wanted)

    def current(self) -> str:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier.get(TRACEPARENT, "")

    def traceparent(self, place: SpanPlace) -> str:
        carrier: dict[str, str] = {}
        known = NonRecordingSpan(self._context(place.trace, place.span))
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(known, _NOWHERE))
        return carrier[TRACEPARENT]

    def note(self, event: str) -> None:
        trace.get_current_span().add_event(event)

    def stop(self) -> None:
        self._provider.shutdown()

    def _context(self, trace_name: str, span_name: str) -> SpanContext:
        """Return the context of a span by name, made here or in another process."""
        trace_id = _trace_id(trace_name)
        decision = self._provider.sampler.should_sample(None, trace_id, span_name).decision
        sampled = decision is not Decision.DROP
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        span_id = _span_id(trace_name, span_name)
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)


class _SurroundingSpan:
    """A span that surrounds what this thread does until it ends."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._token = contexts.attach(trace.set_span_in_context(span))

    def end(self) -> None:
        contexts.detach(self._token)
        self._span.end()


_WANTED: ContextVar[SpanPlace | None] = ContextVar("wanted_place", default=None)


class _NamedIds(IdGenerator):
    """Ids of the wanted place while there is one, else random ids."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_trace_id(self) -> int:
        place = _WANTED.get()
        return _trace_id(place.trace) if place else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        place = _WANTED.get()
        return _span_id(place.trace, place.span) if place else self._random.generate_span_id()


def _trace_id(name: str) -> int:
    return _id(f"trace {name}", _TRACE_ID_BYTES)


def _span_id(trace_name: str, name: str) -> int:
    return _id(f"span {trace_name} {name}", _SPAN_ID_BYTES)


def _id(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])


def _named(attributes: dict[str, str | int]) -> dict[str, str | int]:
    return {f"hfmds.{name}": value for name, value in attributes.items()}
