import asyncio
import socket
from functools import partial

import pytest

from hfmds.errors import NotFound, Unavailable
from hfmds.service.client.channel import Backoff, Peer, call, open_channel, translating
from tests.service import raw_http2
from tests.service.loopback import Stub, running


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def refuse(request: bytes) -> bytes:
    raise NotFound("run r7 does not exist")


async def test_a_call_returns_the_answer() -> None:
    async with running() as it:
        assert await call(it.peer, it.stub.unary, b"x", timeout_seconds=5) == b"x"


async def test_a_refusal_arrives_as_our_error_naming_the_peer() -> None:
    async with running(refuse) as it:
        expected = f"run r7 does not exist (answer of tester at {it.peer.address})"
        with pytest.raises(NotFound) as refusal:
            await call(it.peer, it.stub.unary, b"", timeout_seconds=5)
        assert str(refusal.value) == expected
        with pytest.raises(NotFound), translating(it.peer):
            async for _ in it.stub.download(b""):
                pass


async def test_a_peer_that_is_away_is_named_with_its_setting() -> None:
    peer = Peer("coordinator", f"127.0.0.1:{unused_port()}", "HFMDS_COORDINATOR")
    channel = open_channel(peer)
    with pytest.raises(Unavailable) as failure:
        await call(peer, Stub(channel).unary, b"", timeout_seconds=5)
    await channel.close()
    message = str(failure.value)
    assert message.startswith(f"coordinator at {peer.address} is unavailable (")
    assert message.endswith(
        "is it running, is HFMDS_COORDINATOR its address, and does it serve without TLS?"
    )


@pytest.mark.parametrize("status", ["400", "403", "404", "503"])
async def test_a_proxy_that_has_lost_its_server_is_a_peer_that_is_away(status: str) -> None:
    proxy = await asyncio.start_server(
        partial(raw_http2.answer_as_web_server, status), "127.0.0.1", 0
    )
    port = proxy.sockets[0].getsockname()[1]
    peer = Peer("coordinator", f"127.0.0.1:{port}", "HFMDS_COORDINATOR")
    channel = open_channel(peer)
    with pytest.raises(Unavailable, match=f"is unavailable .*{status}.*its address"):
        await call(peer, Stub(channel).unary, b"", timeout_seconds=5)
    await channel.close()
    proxy.close()


async def test_a_peer_that_is_too_slow_is_unavailable() -> None:
    async with running() as it:
        with pytest.raises(Unavailable, match="did not answer in time"):
            await call(it.peer, it.stub.wait, b"", timeout_seconds=0.1)


async def test_a_brief_absence_is_bridged_by_the_channel() -> None:
    calls = 0

    def away_at_first(request: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("not ready")
        return request

    async with running(away_at_first) as it:
        assert await call(it.peer, it.stub.unary, b"x", timeout_seconds=5) == b"x"
    assert calls == 2


def test_the_ceiling_of_waits_grows_to_its_maximum() -> None:
    backoff = Backoff(first_seconds=1, max_seconds=5, factor=2)
    assert [backoff.ceiling(failures) for failures in (1, 2, 3, 4, 10**6)] == [1, 2, 4, 5, 5]
