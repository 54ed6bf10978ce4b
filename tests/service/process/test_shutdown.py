"""The end of a process. The test moves the clock."""

from __future__ import annotations

import asyncio

from hfmds.service.process.shutdown import Shutdown


async def test_all_that_ends_a_process_shares_one_time() -> None:
    now, given = [100.0], []

    async def port(seconds: float) -> None:
        given.append(seconds)
        now[0] += 15.0  # as its calls took so long

    shutdown = Shutdown(20.0, lambda: now[0])
    for _ in range(2):
        shutdown.add(port)
    now[0] += 1000.0  # it has served meanwhile
    await shutdown.stop()
    assert given == [20.0, 20.0]
    assert shutdown.left_seconds() == 0.0
    await shutdown.stop()  # as at the end of each `serving`
    assert given == [20.0, 20.0]


async def test_what_is_left_of_the_grace_is_for_what_comes_after_the_ports() -> None:
    now = [100.0]

    async def port(seconds: float) -> None:
        now[0] += 5.0

    shutdown = Shutdown(20.0, lambda: now[0])
    shutdown.add(port)
    await shutdown.stop()
    assert shutdown.left_seconds() == 15.0


async def test_a_second_that_stops_waits_for_the_same_end() -> None:
    release, ends = asyncio.Event(), []

    async def port(_: float) -> None:
        await release.wait()
        ends.append("port")

    async def stop() -> None:
        await shutdown.stop()
        ends.append("waiter")

    shutdown = Shutdown(20.0)
    shutdown.add(port)
    waiters = [asyncio.create_task(stop()) for _ in range(2)]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*waiters)
    assert ends == ["port", "waiter", "waiter"]
