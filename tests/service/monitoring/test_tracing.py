"""Spans within one process: their parents, their attributes, and none without tracing."""

import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hfmds.errors import ConfigurationError, InvalidInput
from hfmds.service.monitoring import tracing
from hfmds.service.monitoring.otel import OtelBackend
from hfmds.service.monitoring.tracing import SpanPlace
from hfmds.service.process.settings import ServiceSettings, load_settings
from tests.service.loopback import SERVICE, running

ROUND = SpanPlace("run.1/3", "round")
TRAIN = SpanPlace("run.1/3", "train", parent="round")


class Traced:
    """Tracing with the spans that it made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.backend = OtelBackend(self._exporter, "tester", "1.0")

    def spans(self) -> dict[str, ReadableSpan]:
        self.backend._provider.force_flush()
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    tracing.trace_with(traced.backend)
    yield traced
    tracing.stop_tracing()


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_without_an_endpoint_there_is_nothing() -> None:
    tracing.start_tracing(None, "tester")
    assert not tracing.is_on()
    with tracing.span("task", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
        assert tracing.current() == ""
        assert tracing.call_metadata() is None
        tracing.note("nothing")
    assert tracing.begin("round", ROUND) is None
    assert tracing.traceparent_of(ROUND) == ""


def test_a_span_is_found_by_its_name_from_anywhere(traced: Traced) -> None:
    found = tracing.traceparent_of(TRAIN)  # as another coordinator would, before or after
    round_span = tracing.begin("round", ROUND, run="run", round=3)
    phase_span = tracing.begin("train", TRAIN)
    with tracing.span("assign", found, task="t1"):
        given = tracing.current()
    with tracing.span("task", given):
        pass
    assert phase_span is not None
    assert round_span is not None
    phase_span.end()
    round_span.end()
    made = traced.spans()
    assert len({span.context.trace_id for span in made.values() if span.context}) == 1
    assert made["round"].parent is None
    assert parent_of(made["train"]) == id_of(made["round"])
    assert parent_of(made["assign"]) == id_of(made["train"])
    assert parent_of(made["task"]) == id_of(made["assign"])
    assert made["round"].attributes == {"hfmds.run": "run", "hfmds.round": 3}
    assert made["task"].resource.attributes["service.name"] == "tester"
    assert tracing.traceparent_of(SpanPlace("run.2/3", "train")) != found


def test_what_belongs_to_no_round_makes_no_span(traced: Traced) -> None:
    with tracing.span("download"), tracing.span("task", "not a traceparent"):
        assert tracing.call_metadata() is None
    assert traced.spans() == {}


async def test_a_call_carries_its_place_and_others_are_not_traced(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as it:
        await it.stub.unary(b"x")
        with tracing.span("upload", tracing.traceparent_of(TRAIN)):
            await it.stub.upload(chunks(b"x"), metadata=tracing.call_metadata())
            download = it.stub.download(b"y", metadata=tracing.call_metadata())
            assert await download.read() == b"first"
            download.cancel()
            await it.counted("Download", "CANCELLED")
    made = traced.spans()
    assert set(made) == {"upload", f"{SERVICE}/Upload", f"{SERVICE}/Download"}
    assert not [record for record in caplog.records if "opentelemetry" in record.name]
    for method in ("Upload", "Download"):
        assert parent_of(made[f"{SERVICE}/{method}"]) == id_of(made["upload"])


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_of_an_error_only_the_kind_is_told(traced: Traced) -> None:
    with (
        pytest.raises(InvalidInput),
        tracing.span("compute", tracing.traceparent_of(TRAIN)),
    ):
        raise InvalidInput("the image /home/ann/cat.png")
    (span,) = traced.spans().values()
    assert span.attributes == {"error.type": "InvalidInput"}
    assert span.events == ()
    assert "cat.png" not in span.to_json()


def test_a_round_that_is_not_sampled_is_traced_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    traced = Traced()
    tracing.trace_with(traced.backend)
    try:
        round_span = tracing.begin("round", ROUND)
        with tracing.span("assign", tracing.traceparent_of(TRAIN)):
            assert tracing.current().endswith("-00")
        assert round_span is not None
        round_span.end()
        assert traced.spans() == {}
    finally:
        tracing.stop_tracing()


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "hfmds.service.monitoring.otel")
    with pytest.raises(ConfigurationError, match=r"install hfmds-fl\[tracing\]"):
        tracing.start_tracing("http://127.0.0.1:4317", "tester")
    assert not tracing.is_on()


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "grpc://host:1", "http://"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="HFMDS_OTLP_ENDPOINT"):
        load_settings(ServiceSettings, ["--otlp-endpoint", endpoint])


@pytest.mark.integration
def test_a_collector_that_is_away_does_not_disturb() -> None:
    tracing.start_tracing("http://127.0.0.1:1", "tester")
    with tracing.span("task", tracing.traceparent_of(TRAIN)):
        pass
    tracing.stop_tracing()
    assert not tracing.is_on()
