"""Traces of rounds and their tasks across the programs, for operators who want them.

Off, and then without cost, unless HFMDS_OTLP_ENDPOINT is set. A round is a trace: its phases hang
under it, the tasks of devices under their phase, and calls to servers under what makes them. What
does not belong to a round makes no spans. OpenTelemetry itself is in `otel`.

Attributes are names and numbers of rounds and tasks, and kinds of errors. What devices hold never
becomes one: no images, labels, losses or counts of them, no folders, no texts of errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from hfmds.errors import ConfigurationError
from hfmds.service.monitoring.program_metrics import software_version

TRACEPARENT = "traceparent"
"""The name of the W3C's trace context in the metadata of a call."""


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """A span by name: whoever knows the names knows its ids, also another process, or a later one.

    `parent` is the name of the span around it in the same trace; empty: it is the trace's first.
    """

    trace: str
    span: str
    parent: str = ""


class OpenSpan(Protocol):
    """A span that has begun, and is around what this thread does until it ends."""

    def end(self) -> None: ...


class Backend(Protocol):
    """What traces, if something does."""

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
    """Send this process's spans to the collector there; without an endpoint, trace nothing."""
    if endpoint is None:
        return
    try:
        from hfmds.service.monitoring.otel import open_backend
    except ImportError as error:
        raise ConfigurationError(
            f"HFMDS_OTLP_ENDPOINT is set, but {error.name} is not installed; "
            "install hfmds-fl[tracing], or leave it out"
        ) from error
    trace_with(open_backend(endpoint, service, software_version()))


def trace_with(backend: Backend | None) -> None:
    """Trace with this backend from now on; None: not at all."""
    global _backend
    _backend = backend


def stop_tracing() -> None:
    """Send what is left, for a few seconds at most, and trace no more."""
    backend = _backend
    trace_with(None)
    if backend:
        backend.stop()


def is_on() -> bool:
    """Whether anything is traced."""
    return _backend is not None


def span(name: str, parent: str = "", **attributes: str | int) -> AbstractContextManager[None]:
    """Trace what happens inside, under `parent` (a traceparent) or the span around it.

    Without either, nothing is traced.
    """
    return _backend.span(name, parent, attributes) if _backend else _NOTHING


def begin(name: str, place: SpanPlace, **attributes: str | int) -> OpenSpan | None:
    """Begin a span at a place, around what this thread does until it is ended."""
    return _backend.begin(name, place, attributes) if _backend else None


def serving(
    service: str, method: str, metadata: Callable[[], Iterable[tuple[str, str | bytes]] | None]
) -> AbstractContextManager[None]:
    """Trace the answer to a call, if its caller traces; `metadata` gives what the call carries."""
    if _backend is None:
        return _NOTHING
    given = next((value for key, value in metadata() or () if key == TRACEPARENT), "")
    if not given or not isinstance(given, str):
        return _NOTHING
    return _backend.span(f"{service}/{method}", given, {})


def call_metadata() -> tuple[tuple[str, str], ...] | None:
    """What a call carries, so that its server's span hangs under the one around the call."""
    traceparent = _backend.current() if _backend else ""
    return ((TRACEPARENT, traceparent),) if traceparent else None


def current() -> str:
    """The traceparent of the span around this; empty: there is none."""
    return _backend.current() if _backend else ""


def traceparent_of(place: SpanPlace) -> str:
    """The traceparent of a place; empty: nobody traces."""
    return _backend.traceparent(place) if _backend else ""


def note(event: str) -> None:
    """Note in the span around this that something happened."""
    if _backend:
        _backend.note(event)
