"""A service with one method of each kind, to run and call on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from hfmds.service.client.channel import Peer, open_channel
from hfmds.service.limits.limits import Limits
from hfmds.service.monitoring.rpc_metrics import RpcMetrics
from hfmds.service.security.access import Access
from hfmds.service.security.tls import TlsFiles
from hfmds.service.server.server import GrpcServer
from tests.support.waiting import eventually

SERVICE = "test.v1.ProbeService"


class Probe:
    """Every method asks `behave` what to do with a request: it returns bytes or raises."""

    def __init__(self, behave: Callable[[bytes], bytes]) -> None:
        self._behave = behave
        self.decode: Callable[[bytes], Any] = bytes
        self.waiting = asyncio.Event()
        self.release = asyncio.Event()
        self.stream_closed = asyncio.Event()

    async def unary(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return self._behave(request)

    async def download(
        self, request: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            yield self._behave(request)
            await asyncio.sleep(60)
        finally:
            self.stream_closed.set()

    async def flood(
        self, request: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1024 * 1024)
        finally:
            self.stream_closed.set()

    async def upload(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> bytes:
        return self._behave(b"".join([chunk async for chunk in requests]))

    async def wait(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.waiting.set()
        await self.release.wait()
        return b"released"

    async def abort(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "by hand")
        return b""


def register(probe: Probe, server: grpc.aio.Server) -> None:
    """What a generated `add_..._to_server` does, without serialisation."""
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(
            probe.unary, request_deserializer=lambda data: probe.decode(data)
        ),
        "Download": grpc.unary_stream_rpc_method_handler(probe.download),
        "Flood": grpc.unary_stream_rpc_method_handler(probe.flood),
        "Upload": grpc.stream_unary_rpc_method_handler(probe.upload),
        "Wait": grpc.unary_unary_rpc_method_handler(probe.wait),
        "Abort": grpc.unary_unary_rpc_method_handler(probe.abort),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))


class Stub:
    """What a generated stub does, without serialisation."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.unary: Any = channel.unary_unary(f"/{SERVICE}/Unary")
        self.download: Any = channel.unary_stream(f"/{SERVICE}/Download")
        self.flood: Any = channel.unary_stream(f"/{SERVICE}/Flood")
        self.upload: Any = channel.stream_unary(f"/{SERVICE}/Upload")
        self.wait: Any = channel.unary_unary(f"/{SERVICE}/Wait")
        self.abort: Any = channel.unary_unary(f"/{SERVICE}/Abort")
        self.missing: Any = channel.unary_unary(f"/{SERVICE}/Missing")


class Running:
    """A started server, its probe, its metrics, and a channel to it."""

    def __init__(
        self,
        behave: Callable[[bytes], bytes],
        limits: Limits,
        tls: TlsFiles | None,
        access: Access,
        given: dict[str, Any],
    ) -> None:
        self.registry = CollectorRegistry()
        self.probe = Probe(behave)
        self.server = GrpcServer(
            "127.0.0.1:0",
            RpcMetrics("tester", self.registry),
            limits=limits,
            tls=tls,
            **given,
        )
        self.server.add(register, self.probe, SERVICE, access)

    async def start(self) -> None:
        await self.server.start()
        self.peer = Peer("tester", self.server.address, "HFMDS_TESTER")
        self.channel = open_channel(self.peer)
        self.stub = Stub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0)

    def count(self, method: str, code: str) -> float:
        labels = {"service": SERVICE, "method": method, "code": code}
        return self.registry.get_sample_value("hfmds_tester_rpc_requests_total", labels) or 0

    async def counted(self, method: str, code: str) -> None:
        """Wait until the server counted such a call, which the caller may see end before."""
        await eventually(lambda: self.count(method, code))


@asynccontextmanager
async def running(
    behave: Callable[[bytes], bytes] = lambda request: request,
    *,
    limits: Limits = Limits(calls=100),  # noqa: B008 (frozen)
    tls: TlsFiles | None = None,
    access: Access | None = None,
    **given: Any,
) -> AsyncIterator[Running]:
    """Run a server on a free port of 127.0.0.1. `given` are further arguments of the server."""
    it = Running(behave, limits, tls, access or {}, given)
    await it.start()
    try:
        yield it
    finally:
        await it.stop()
