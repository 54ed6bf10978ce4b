import asyncio
import random
import socket
from collections.abc import Awaitable, Callable

import pytest

from hfmds.errors import NotFound, Unavailable
from hfmds.service.channel import Backoff, Peer, call, open_channel, retrying, translating
from tests.service.loopback import Stub, running


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def refuse(request: bytes) -> bytes:
    raise NotFound("run r7 does not exist")


def test_a_call_returns_the_answer() -> None:
    async def scenario() -> None:
        async with running() as it:
            assert await call(it.peer, it.stub.unary, b"x", timeout_seconds=5) == b"x"

    asyncio.run(scenario())


def test_a_refusal_arrives_as_our_error_naming_the_peer() -> None:
    async def scenario() -> None:
        async with running(refuse) as it:
            expected = f"run r7 does not exist (answer of tester at {it.peer.address})"
            with pytest.raises(NotFound) as refusal:
                await call(it.peer, it.stub.unary, b"", timeout_seconds=5)
            assert str(refusal.value) == expected
            with pytest.raises(NotFound), translating(it.peer):
                async for _ in it.stub.download(b""):
                    pass

    asyncio.run(scenario())


def test_a_peer_that_is_away_is_named_with_its_setting() -> None:
    async def scenario() -> None:
        peer = Peer("coordinator", f"127.0.0.1:{unused_port()}", "HFMDS_COORDINATOR")
        channel = open_channel(peer)
        with pytest.raises(Unavailable) as failure:
            await call(peer, Stub(channel).unary, b"", timeout_seconds=5)
        await channel.close()
        message = str(failure.value)
        assert message.startswith(f"coordinator at {peer.address} is unavailable (")
        assert message.endswith("is it running, and is HFMDS_COORDINATOR its address?")

    asyncio.run(scenario())


def test_a_peer_that_is_too_slow_is_unavailable() -> None:
    async def scenario() -> None:
        async with running() as it:
            with pytest.raises(Unavailable, match="did not answer in time"):
                await call(it.peer, it.stub.wait, b"", timeout_seconds=0.1)

    asyncio.run(scenario())


def test_a_brief_absence_is_bridged_by_the_channel() -> None:
    calls = 0

    def away_at_first(request: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unavailable("not ready")
        return request

    async def scenario() -> None:
        async with running(away_at_first) as it:
            assert await call(it.peer, it.stub.unary, b"x", timeout_seconds=5) == b"x"

    asyncio.run(scenario())
    assert calls == 2


class Clock:
    """Takes note of waits instead of waiting."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def failing(times: int, error: Exception) -> Callable[[], Awaitable[str]]:
    failures = iter([error] * times)

    async def operation() -> str:
        if failure := next(failures, None):
            raise failure
        return "done"

    return operation


def test_retries_wait_longer_and_longer_with_full_jitter() -> None:
    clock = Clock()
    backoff = Backoff(first_seconds=1, max_seconds=5, factor=2)
    operation = failing(2000, Unavailable("away"))
    result = asyncio.run(retrying(operation, backoff, rng=random.Random(0), sleep=clock.sleep))
    assert result == "done"
    ceilings = [1, 2, 4] + [5] * 1997
    assert all(0 <= wait <= most for wait, most in zip(clock.waits, ceilings, strict=True))
    assert min(clock.waits) < 0.1
    assert max(clock.waits) > 4.9


def test_retries_end_after_the_given_attempts() -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match="away"):
        asyncio.run(
            retrying(
                failing(9, Unavailable("away")),
                Backoff(attempts=3),
                rng=random.Random(0),
                sleep=clock.sleep,
            )
        )
    assert len(clock.waits) == 2


def test_an_error_that_will_not_pass_is_not_retried() -> None:
    clock = Clock()
    with pytest.raises(NotFound):
        asyncio.run(
            retrying(failing(1, NotFound("x")), Backoff(), rng=random.Random(0), sleep=clock.sleep)
        )
    assert clock.waits == []
