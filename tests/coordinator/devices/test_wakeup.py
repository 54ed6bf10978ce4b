from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

from coordinator.devices.request_batches import Batcher
from coordinator.devices.wakeup import Wakeup, wake_all


async def test_a_ring_wakes_a_thread_and_a_coroutine() -> None:
    wakeup = Wakeup()
    wakes = wakeup.wakes
    woken = threading.Event()

    def wait() -> None:
        wakeup.wait(wakes, 30)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()

    waiting = asyncio.create_task(wakeup.wait_async(wakes, 30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await asyncio.to_thread(wakeup.wake)
    await asyncio.wait_for(waiting, 20)
    assert woken.wait(20)


async def test_a_ring_before_the_wait_is_not_missed() -> None:
    wakeup = Wakeup()
    wakes = wakeup.wakes
    wakeup.wake()
    wakeup.wait(wakes, 30)
    await asyncio.wait_for(wakeup.wait_async(wakes, 30), 20)


async def test_a_wait_without_a_ring_ends_at_its_timeout() -> None:
    wakeup = Wakeup()
    wakeup.wait(wakeup.wakes, 0.01)
    await wakeup.wait_async(wakeup.wakes, 0.01)
    assert wakeup.wakes == 0


async def test_devices_woken_together_are_answered_together() -> None:
    wakeups, answered = [Wakeup() for _ in range(50)], list[int]()

    def answer(asked: Sequence[Wakeup]) -> Sequence[bool]:
        answered.append(len(asked))
        return [True] * len(asked)

    def one_after_the_other() -> Iterator[Wakeup]:
        for wakeup in wakeups:
            time.sleep(0.001)
            yield wakeup

    batcher = Batcher[Wakeup, bool](answer, max_batch=len(wakeups))

    async def ask_when_rung(wakeup: Wakeup) -> None:
        await wakeup.wait_async(0, 30)
        await batcher.ask(wakeup)

    asking = [asyncio.create_task(ask_when_rung(wakeup)) for wakeup in wakeups]
    await asyncio.sleep(0.05)  # all tasks reach their wait
    await asyncio.to_thread(wake_all, one_after_the_other())
    await asyncio.wait_for(asyncio.gather(*asking), 20)
    assert answered == [len(wakeups)]
