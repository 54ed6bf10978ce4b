"""One round is one trace over three programs, received by a collector of the test.

The same run shows what devices push into the coordinator's metrics.
"""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec, RunState
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.admin_client import AdminClient
from tests.support.programs import Program, Programs

pytestmark = pytest.mark.integration

SIDE = 16
SPEC = RunSpec(
    Recipe(
        ModelSpec(channels=1, height=SIDE, width=SIDE, classes=10),
        Normalisation((0.5,), (0.25,)),
        rounds=1,
        method=Hfmds(every_rounds=1, first_round=1, samples_per_device=2, steps=2),
    ),
    RoundPolicy(minimum_devices=2),
)
ATTRIBUTES = {"hfmds.run", "hfmds.round", "hfmds.task", "hfmds.kind", "error.type"}
"""The attributes that spans may have."""

RESOURCE = {
    "service.namespace",
    "service.name",
    "service.version",
    "service.instance.id",
    "telemetry.sdk.language",
    "telemetry.sdk.name",
    "telemetry.sdk.version",
}


class Collector(pb_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Receives and keeps spans like an OpenTelemetry collector."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spans: list[tuple[str, Span]] = []  # with the name of their program
        self.resource: set[str] = set()
        self.received = b""

    def Export(
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        with self._lock:
            self.received += request.SerializeToString()
            for group in request.resource_spans:
                resource = {
                    attribute.key: attribute.value.string_value
                    for attribute in group.resource.attributes
                }
                self.resource |= set(resource)
                for scope in group.scope_spans:
                    self.spans += [(resource["service.name"], span) for span in scope.spans]
        return pb.ExportTraceServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    pb_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0)


class Trace:
    """The spans of one trace."""

    def __init__(self, spans: list[tuple[str, Span]]) -> None:
        self._by_id = {span.span_id: (program, span) for program, span in spans}
        assert len(self._by_id) == len(spans)
        self._children: dict[bytes, list[tuple[str, Span]]] = defaultdict(list)
        for program, span in spans:
            self._children[span.parent_span_id].append((program, span))
        (self.root,) = self._children.pop(b"")

    def below(self, parent: Span, name: str) -> list[tuple[str, Span]]:
        """Return the children of a span that have this name."""
        return [child for child in self._children[parent.span_id] if child[1].name == name]

    def only(self, parent: Span, program: str, name: str) -> Span:
        ((of, span),) = self.below(parent, name)
        assert of == program, (of, name)
        return span

    def orphans(self) -> list[str]:
        return [
            span.name
            for parent, spans in self._children.items()
            for _, span in spans
            if parent not in self._by_id
        ]


async def run_traced(programs: Programs, folder: Path, endpoint: str) -> str:
    """Run one round with two devices; return the coordinator's metrics at its end."""
    images = load_images(f"digits:{SIDE}#train")
    traced = {"otlp_endpoint": endpoint}
    listening = {"listen": "127.0.0.1:0"}
    store = programs.start(
        "store", "synthesis_store", data_dir=str(folder / "s"), **listening, **traced
    )
    coordinator = programs.start(
        "coordinator",
        "coordinator",
        data_dir=str(folder / "c"),
        store=store.address("grpc"),
        **listening,
        **traced,
    )
    started = [store, coordinator]
    for number, device_id in enumerate(("private-camera", "private-phone")):
        data = folder / f"{device_id}-data.npz"
        save_npz(data, images.take(np.arange(number * 8, number * 8 + 8)))
        started.append(
            programs.start(
                device_id,
                "edge_client",
                device_id=device_id,
                engine="torch",
                data=str(data),
                coordinator=coordinator.address("grpc"),
                store=store.address("grpc"),
                state_dir=str(folder / device_id),
                run="traced",
                **({"report_cost": "false"} if number else {}),
                **traced,
            )
        )
    await until_completed(Peer("coordinator", coordinator.address("grpc"), ""))
    metrics = scraped(coordinator)
    for device in started[2:]:
        assert device.process.wait(60) == 0, device.log.read_text()  # its run has ended
    for program in started[:2]:
        assert program.stop() == 0, program.log.read_text()
    return metrics


async def until_completed(peer: Peer) -> None:
    admin = AdminClient(peer)
    try:
        await admin.create_run(SPEC, "traced")
        async with asyncio.timeout(90):
            async for run, _ in admin.watch_run("traced"):
                assert run.state in (RunState.RUNNING, RunState.COMPLETED), run.state_reason
    finally:
        await admin.close()


def scraped(program: Program) -> str:
    with urllib.request.urlopen(f"http://{program.address('metrics')}/metrics") as response:
        text: str = response.read().decode()
        return text


async def test_a_round_is_one_trace_and_devices_report_its_cost(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs, collecting() as (collector, endpoint):
        metrics = await run_traced(programs, tmp_path, endpoint)

    assert len({span.trace_id for _, span in collector.spans}) == 1
    trace = Trace(collector.spans)
    assert trace.orphans() == []
    program, root = trace.root
    assert (program, root.name) == ("coordinator", "round")
    trace.only(root, "synthesis_store", "hfmds.v1.SynthesisStoreService/OpenPool")
    seal = trace.only(root, "coordinator", "seal")
    trace.only(seal, "synthesis_store", "hfmds.v1.SynthesisStoreService/SealPool")
    trace.only(root, "coordinator", "aggregate")
    for kind in ("synthesise", "train"):
        phase = trace.only(root, "coordinator", kind)
        assignments = trace.below(phase, "assign")
        assert len(assignments) == 2
        for of, assigned in assignments:
            assert of == "coordinator"
            follow_the_task(trace, assigned, kind)

    keys: set[str] = {attribute.key for _, span in collector.spans for attribute in span.attributes}
    assert keys <= ATTRIBUTES
    assert collector.resource <= RESOURCE
    for secret in ("private", str(tmp_path), "127.0.0.1"):  # devices, folders, addresses
        assert secret.encode() not in collector.received

    # One of two devices reports no costs.
    for kind in ("train", "synthesise"):
        assert f'hfmds_coordinator_fleet_reports_total{{kind="{kind}"}} 1.0' in metrics
        stage = f'hfmds_coordinator_funnel_tasks_total{{kind="{kind}",stage='
        assert f'{stage}"assigned"}} 2.0' in metrics
        assert f'{stage}"accepted"}} 2.0' in metrics
    assert 'fleet_batch_ssim_ratio_count{real="nearest"} 1.0' in metrics


def follow_the_task(trace: Trace, assigned: Span, kind: str) -> None:
    """Check the spans of a task from its assignment to its result."""
    coordinator, store = "hfmds.v1.CoordinatorService", "hfmds.v1.SynthesisStoreService"
    task = trace.only(assigned, "edge_client", "task")
    assert [event.name for event in task.events] == ["accepted"]
    download = trace.only(task, "edge_client", "download")
    compute = trace.only(task, "edge_client", "compute")
    submit = trace.only(task, "edge_client", "submit")
    steps = [download, compute, submit]
    if kind != "train":
        upload = trace.only(task, "edge_client", "upload")
        steps.insert(2, upload)
    ends = [span.end_time_unix_nano for span in steps]
    begins = [span.start_time_unix_nano for span in steps]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    if kind == "train":
        trace.only(download, "synthesis_store", f"{store}/GetShare")
        submitted = trace.only(submit, "coordinator", f"{coordinator}/SubmitUpdate")
    else:
        trace.only(download, "coordinator", f"{coordinator}/DownloadBlob")
        trace.only(upload, "synthesis_store", f"{store}/PutBatch")
        submitted = trace.only(submit, "coordinator", f"{coordinator}/SubmitSynthesis")
    assert [event.name for event in submitted.events] == ["accepted"]
