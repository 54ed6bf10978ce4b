from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

from coordinator.devices.batching import Batcher
from coordinator.devices.wakeup import Bell, ring_all


async def test_a_ring_wakes_a_thread_and_a_coroutine() -> None:
    bell = Bell()
    rings = bell.rings
    woken = threading.Event()

    def wait() -> None:
        bell.wait(rings, 30)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()

    waiting = asyncio.create_task(bell.wait_async(rings, 30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await asyncio.to_thread(bell.ring)
    await asyncio.wait_for(waiting, 20)
    assert woken.wait(20)


async def test_a_ring_before_the_wait_is_not_missed() -> None:
    bell = Bell()
    rings = bell.rings
    bell.ring()
    bell.wait(rings, 30)
    await asyncio.wait_for(bell.wait_async(rings, 30), 20)


async def test_a_wait_without_a_ring_ends_at_its_timeout() -> None:
    bell = Bell()
    bell.wait(bell.rings, 0.01)
    await bell.wait_async(bell.rings, 0.01)
    assert bell.rings == 0


async def test_devices_woken_together_are_answered_together() -> None:
    bells, answered = [Bell() for _ in range(50)], list[int]()

    def answer(asked: Sequence[Bell]) -> Sequence[bool]:
        answered.append(len(asked))
        return [True] * len(asked)

    def one_after_the_other() -> Iterator[Bell]:
        for bell in bells:
            time.sleep(0.001)
            yield bell

    batcher = Batcher[Bell, bool](answer, max_batch=len(bells))

    async def ask_when_rung(bell: Bell) -> None:
        await bell.wait_async(0, 30)
        await batcher.ask(bell)

    asking = [asyncio.create_task(ask_when_rung(bell)) for bell in bells]
    await asyncio.sleep(0.05)  # all tasks reach their wait
    await asyncio.to_thread(ring_all, one_after_the_other())
    await asyncio.wait_for(asyncio.gather(*asking), 20)
    assert answered == [len(bells)]
