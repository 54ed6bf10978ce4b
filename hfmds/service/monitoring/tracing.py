"""Traces of rounds and their tasks across the programs.

Tracing is off, and costs nothing, unless HFMDS_OTLP_ENDPOINT is set. A round is a trace. Its phases
are under it, the tasks of devices are under their phase, and a call to a server is under the span
of its caller. Nothing else makes spans. `otel` has the OpenTelemetry part.

Attributes are names and numbers of rounds and tasks, and kinds of errors. They never tell what a
device has: no images, labels, losses or counts of them, no folders, no texts of errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from hfmds.errors import ConfigurationError
from hfmds.service.monitoring.program_metrics import software_version

TRACEPARENT = "traceparent"
"""The metadata key of the W3C trace context."""


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """A span by its names. Its ids follow from the names, in every process and at every time.

    `parent` names the span around it in the same trace. It is empty for the first span of a trace.
    """

    trace: str
    span: str
    parent: str = ""


class OpenSpan(Protocol):
    """A span that surrounds what this thread does until the span ends."""

    def end(self) -> None: ...


class Backend(Protocol):
    """The tracing library behind this module."""

    def span(
        self, name: str, parent: str, attributes: dict[str, str | int]
    ) -> AbstractContextManager[None]: ...

    def begin(self, name: str, place: SpanPlace, attributes: dict[str, str | int]) -> OpenSpan: ...

    def current(self) -> str: ...

    def traceparent(self, place: SpanPlace) -> str: ...

    def note(self, event: str) -> None: ...

    def stop(self) -> None: ...


_backend: Backend | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def start_tracing(endpoint: str | None, service: str) -> None:
    """Send the spans of this process to the collector. Without an endpoint, trace nothing."""
    if endpoint is None:
        return
    try:
        from hfmds.service.monitoring.otel import open_backend
    except ImportError as error:
        raise ConfigurationError(
            f"HFMDS_OTLP_ENDPOINT is set, but {error.name} is not installed; "
            "install hfmds-fl[tracing], or unset it"
        ) from error
    trace_with(open_backend(endpoint, service, software_version()))


def trace_with(backend: Backend | None) -> None:
    """Trace with this backend from now on. None stops tracing."""
    global _backend
    _backend = backend


def stop_tracing() -> None:
    """Send the remaining spans, for a few seconds at most, and stop tracing."""
    backend = _backend
    trace_with(None)
    if backend:
        backend.stop()


def is_on() -> bool:
    """Return whether this process traces."""
    return _backend is not None


def span(name: str, parent: str = "", **attributes: str | int) -> AbstractContextManager[None]:
    """Trace the block, under `parent` (a traceparent) or under the surrounding span.

    Without either, trace nothing.
    """
    return _backend.span(name, parent, attributes) if _backend else _NOTHING


def begin(name: str, place: SpanPlace, **attributes: str | int) -> OpenSpan | None:
    """Begin a span at a place. It surrounds what this thread does until its end."""
    return _backend.begin(name, place, attributes) if _backend else None


def serving(
    service: str, method: str, metadata: Callable[[], Iterable[tuple[str, str | bytes]] | None]
) -> AbstractContextManager[None]:
    """Trace the answer to a call if its caller traces; `metadata` returns the call's metadata."""
    if _backend is None:
        return _NOTHING
    parent = next((value for key, value in metadata() or () if key == TRACEPARENT), "")
    if not parent or not isinstance(parent, str):
        return _NOTHING
    return _backend.span(f"{service}/{method}", parent, {})


def call_metadata() -> tuple[tuple[str, str], ...] | None:
    """Return the metadata of a call that puts the server's span under the surrounding span."""
    traceparent = _backend.current() if _backend else ""
    return ((TRACEPARENT, traceparent),) if traceparent else None


def current() -> str:
    """Return the traceparent of the surrounding span; empty if there is none."""
    return _backend.current() if _backend else ""


def traceparent_of(place: SpanPlace) -> str:
    """Return the traceparent of a place; empty without tracing."""
    return _backend.traceparent(place) if _backend else ""


def note(event: str) -> None:
    """Add an event to the surrounding span."""
    if _backend:
        _backend.note(event)
