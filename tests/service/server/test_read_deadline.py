"""A wait for a caller ends when it is too long, and no other does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hfmds.service.server.read_deadline import Patience

SOON, LATE = 0.01, 3600.0


def lost(wait: Callable[[Patience], Awaitable[object]]) -> bool:
    """Whether a call was cancelled in this wait, and by its patience alone."""

    async def call() -> bool:
        with Patience() as patience:
            try:
                await wait(patience)
            except asyncio.CancelledError:
                return patience.was_lost()
            return False

    return asyncio.run(call())


async def waits(patience: Patience, seconds: float, for_seconds: float) -> None:
    """Ask for so many seconds, and wait."""
    patience.begin(patience.time() + seconds)
    await asyncio.sleep(for_seconds)
    patience.end()


def test_a_wait_that_is_too_long_is_lost() -> None:
    assert lost(lambda patience: waits(patience, SOON, LATE))


def test_what_is_done_between_two_waits_may_take_long() -> None:
    async def work(patience: Patience) -> None:
        await waits(patience, SOON, 0)
        await asyncio.sleep(5 * SOON)

    assert not lost(work)


def test_each_wait_has_its_own_time() -> None:
    async def later(patience: Patience) -> None:
        await waits(patience, SOON, 0)
        await waits(patience, LATE, 5 * SOON)

    async def sooner(patience: Patience) -> None:
        await waits(patience, LATE, 0)
        await waits(patience, SOON, LATE)

    async def again(patience: Patience) -> None:
        await waits(patience, SOON, 0)
        await waits(patience, 3 * SOON, LATE)

    assert not lost(later)
    assert lost(sooner)
    assert lost(again)


@pytest.mark.parametrize("first", ["caller", "patience"])
def test_who_else_cancels_is_not_taken_for_it(first: str) -> None:
    async def hung_up(patience: Patience) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        at = patience.time()
        if first == "caller":
            loop.call_at(at, task.cancel)
        patience.begin(at)
        if first == "patience":
            loop.call_at(at, task.cancel)
        await asyncio.sleep(LATE)

    assert not lost(hung_up)


async def test_nothing_is_left_behind_when_a_call_is_over() -> None:
    set_timers: list[asyncio.TimerHandle] = []

    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def noted(*args: Any) -> asyncio.TimerHandle:
        set_timers.append(call_at(*args))
        return set_timers[-1]

    loop.call_at = noted  # type: ignore[method-assign]
    with Patience() as patience:
        patience.begin(patience.time() + LATE)
    assert [timer.cancelled() for timer in set_timers] == [True]
