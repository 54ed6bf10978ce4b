"""Hostile calls to a port, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from hfmds.errors import InvalidInput, Unavailable
from hfmds.service.client.channel import call, open_channel, translating
from hfmds.service.limits.limits import Limits
from hfmds.service.security.identity import Identity, Kind
from hfmds.v1 import coordinator_pb2
from tests.service import raw_http2
from tests.service.loopback import SERVICE, Running, Stub, running
from tests.service.raw_http2 import connected, is_closed
from tests.support.fleet_certificates import FleetCertificates

HALF_A_HELLO = bytes.fromhex("16030100a5010000a10303")  # announces 165 bytes


async def asked(it: Running) -> bytes:
    answer: bytes = await call(it.peer, it.stub.unary, b"x", timeout_seconds=30)
    return answer


async def cut_off(it: Running, *connections: socket.socket) -> list[bool]:
    """Return whether the server ends each connection. It must serve others at the same time."""
    await it.channel.channel_ready()  # its handshake, too, may last too long, and is tried again
    ends = [asyncio.create_task(asyncio.to_thread(is_closed, each)) for each in connections]
    assert await asked(it) == b"x"
    return await asyncio.gather(*ends)


def refused(it: Running, reason: str) -> float | None:
    return it.registry.get_sample_value("hfmds_tester_rpc_refused_total", {"reason": reason})


# --- connections --------------------------------------------------------------------------------


async def test_connections_beyond_the_limit_are_closed_until_others_are_gone() -> None:
    async with running(limits=Limits(connections=3)) as it:
        with ExitStack() as opened:
            assert await asked(it) == b"x"  # this is the first
            for _ in range(2):
                opened.enter_context(connected(it.peer.address)).sendall(raw_http2.PREFACE)
            fourth = opened.enter_context(connected(it.peer.address))
            assert await cut_off(it, fourth) == [True]
        await it.channel.close()
        it.channel = open_channel(it.peer)
        it.stub = Stub(it.channel)
        assert await asked(it) == b"x"


async def test_connections_that_do_not_finish_their_handshake_are_dropped() -> None:
    async with running(limits=Limits(handshake_seconds=0.5)) as it:
        with connected(it.peer.address) as silent, connected(it.peer.address) as half:
            half.sendall(raw_http2.PREFACE[:10])
            assert await cut_off(it, silent, half) == [True, True]


async def test_a_byte_now_and_then_does_not_prolong_a_handshake() -> None:
    async with running(limits=Limits(handshake_seconds=0.5)) as it:
        with connected(it.peer.address) as slow:
            ended = asyncio.create_task(asyncio.to_thread(is_closed, slow))
            for byte in raw_http2.PREFACE * 10:
                if ended.done():
                    break
                slow.send(bytes([byte]))
                await asyncio.sleep(0.05)
            assert await ended


async def test_half_a_tls_hello_is_dropped(tmp_path: Path) -> None:
    fleet = FleetCertificates.create(tmp_path)

    limits = Limits(handshake_seconds=0.5)
    async with running(tls=fleet.of(Identity(Kind.SERVICE, "tester")), limits=limits) as it:
        with connected(it.peer.address) as silent, connected(it.peer.address) as half:
            half.sendall(HALF_A_HELLO)
            ends = [asyncio.to_thread(is_closed, each) for each in (silent, half)]
            assert await asyncio.gather(*ends) == [True, True]


# --- slow calls ---------------------------------------------------------------------------------


async def test_a_request_that_does_not_come_whole_is_refused() -> None:
    async with running(limits=Limits(message_seconds=0.3)) as it:
        with connected(it.peer.address) as slow:
            slow.sendall(raw_http2.PREFACE + raw_http2.settings())
            slow.sendall(raw_http2.request(f"/{SERVICE}/Unary"))
            slow.sendall(raw_http2.data(raw_http2.message_start(100) + b"half"))
            await it.counted("Unary", "UNAVAILABLE")
            assert refused(it, "slow_request") == 1
            assert await asked(it) == b"x"


@pytest.mark.parametrize("limits", [Limits(message_seconds=0.3), Limits(requests_seconds=0.3)])
async def test_an_upload_that_stands_still_is_refused(limits: Limits) -> None:
    async def standing() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.sleep(60)

    async with running(limits=limits) as it:
        with pytest.raises(Unavailable, match="tester waited long for the request"):
            await call(it.peer, it.stub.upload, standing(), timeout_seconds=30)
        assert refused(it, "slow_request") == 1


async def test_a_caller_that_does_not_take_its_answer_is_left() -> None:
    async with running(limits=Limits(message_seconds=0.3)) as it:
        flood = it.stub.flood(b"")
        await flood.read()
        await asyncio.wait_for(it.probe.stream_closed.wait(), 30)
        await it.counted("Flood", "CANCELLED")
        assert await asked(it) == b"x"


# --- what comes ---------------------------------------------------------------------------------


async def test_bytes_that_are_no_message_are_the_callers_fault() -> None:
    def decode(request: bytes) -> bytes:
        raise AssertionError("is not reached")

    async with running(decode) as it:
        it.probe.decode = coordinator_pb2.CheckInRequest.FromString
        with pytest.raises(InvalidInput, match="not a message of this method's type"):
            await call(it.peer, it.stub.unary, b"\xff\xff", timeout_seconds=30)
        assert it.count("Unary", "INVALID_ARGUMENT") == 1


async def test_a_call_without_a_request_is_refused() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        for chunk in ():
            yield chunk

    async with running() as it:
        method: Any = it.channel.stream_unary(f"/{SERVICE}/Unary")
        with pytest.raises(InvalidInput, match="ended before its request came"):
            await call(it.peer, method, nothing(), timeout_seconds=30)


async def test_a_port_has_caps_of_its_own_for_messages_and_metadata() -> None:
    limits = Limits(message_bytes=1000, metadata_bytes=500)
    async with running(limits=limits) as it:
        assert await it.stub.unary(bytes(1000)) == bytes(1000)
        for content, note in ((bytes(1001), ""), (b"", "x" * 2000)):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await it.stub.unary(content, metadata=(("note", note),))
            assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# --- rates --------------------------------------------------------------------------------------


async def test_calls_beyond_a_rate_are_told_when_to_come_back() -> None:
    async with running(limits=Limits(calls_per_second=0.1)) as it:
        assert await asked(it) == b"x"  # and another one in ten seconds
        with pytest.raises(Unavailable, match=r"takes 0\.1 calls per second") as refusal:
            await asked(it)
        assert refusal.value.retry_after_seconds is not None
        assert refused(it, "rate") == 1


async def test_a_device_is_known_by_its_certificate_before_its_request_is_read(
    tmp_path: Path,
) -> None:
    fleet = FleetCertificates.create(tmp_path)
    server = fleet.of(Identity(Kind.SERVICE, "tester"))
    access = {"Wait": frozenset({Kind.DEVICE}), "Upload": frozenset({Kind.DEVICE})}

    async def standing() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    limits = Limits(device_calls=1)
    async with running(tls=server, access=access, limits=limits) as it:
        greedy = replace(it.peer, tls=fleet.of(Identity(Kind.DEVICE, "greedy")))
        other = replace(it.peer, tls=fleet.of(Identity(Kind.DEVICE, "other")))
        channels = [open_channel(peer) for peer in (greedy, other)]
        waiting = Stub(channels[0]).wait(b"")
        await it.probe.waiting.wait()
        with pytest.raises(Unavailable, match="device greedy"):
            await call(greedy, Stub(channels[0]).upload, standing(), timeout_seconds=30)
        it.probe.release.set()
        assert await Stub(channels[1]).wait(b"") == await waiting == b"released"
        assert refused(it, "device_calls") == 1
        for channel in channels:
            await channel.close()


# --- supervisors --------------------------------------------------------------------------------


async def test_a_server_at_its_limit_answers_its_supervisor() -> None:
    async with running(limits=Limits(calls_per_second=0.1)) as it:
        assert await asked(it) == b"x"
        with pytest.raises(Unavailable):
            await asked(it)
        assert await it.channel.unary_unary("/grpc.health.v1.Health/Check")(b"")


async def test_streams_of_supervisors_are_few_and_shut_out_no_health_check() -> None:
    async with running() as it:
        watch: Any = it.channel.unary_stream("/grpc.health.v1.Health/Watch")
        watches = [watch(b"") for _ in range(50)]
        for each in watches:
            await each.read()
        with pytest.raises(Unavailable, match="50 calls in flight"), translating(it.peer):
            await anext(aiter(watch(b"")))
        assert await it.channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        for each in watches:
            each.cancel()


async def test_supervisors_send_small_messages() -> None:
    async with running() as it:
        large = health_pb2.HealthCheckRequest(service="x" * 2000).SerializeToString()
        check = it.channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(InvalidInput, match="1024"):
            await call(it.peer, check, large, timeout_seconds=30)


# --- an unsupervised port -----------------------------------------------------------------------


async def test_a_port_for_strangers_tells_no_health_and_no_contract() -> None:
    async with running(supervised=False) as it:
        assert await asked(it) == b"x"
        for path in ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await it.channel.unary_unary(path)(b"")
            assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
