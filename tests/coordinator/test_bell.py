from __future__ import annotations

import asyncio
import threading

from coordinator.bell import Bell


def test_a_ring_wakes_a_thread_and_a_coroutine() -> None:
    bell = Bell()
    rings = bell.rings
    woken = threading.Event()

    def wait() -> None:
        bell.wait(rings, 30)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()

    async def scenario() -> None:
        waiting = asyncio.create_task(bell.wait_async(rings, 30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await asyncio.to_thread(bell.ring)
        await asyncio.wait_for(waiting, 20)

    asyncio.run(scenario())
    assert woken.wait(20)


def test_a_ring_before_the_wait_is_not_missed() -> None:
    bell = Bell()
    rings = bell.rings
    bell.ring()
    bell.wait(rings, 30)
    asyncio.run(asyncio.wait_for(bell.wait_async(rings, 30), 20))


def test_a_wait_without_a_ring_ends_at_its_timeout() -> None:
    bell = Bell()
    bell.wait(bell.rings, 0.01)
    asyncio.run(bell.wait_async(bell.rings, 0.01))
    assert bell.rings == 0
