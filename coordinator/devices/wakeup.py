"""Wakes threads and coroutines that wait for a change, without polling."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable


class Wakeup:
    """Counts its wakes. A waiter names the last wake that it knows, so it misses none."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._wakes = 0
        self._sleepers: set[asyncio.Future[None]] = set()

    @property
    def wakes(self) -> int:
        """The number of wakes so far. Read it before you look at the state that you wait for."""
        return self._wakes

    def wake(self) -> None:
        """Wake all waiters. Thread-safe."""
        wake_all([self])

    def _wake_sleepers(self) -> set[asyncio.Future[None]]:
        """Wake the waiting threads; return the waiting coroutines, which the caller wakes."""
        with self._condition:
            self._wakes += 1
            self._condition.notify_all()
            sleepers, self._sleepers = self._sleepers, set()
        return sleepers

    def wait(self, known_wakes: int, timeout_seconds: float) -> None:
        """Block this thread until a wake after `known_wakes`, or the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: self._wakes > known_wakes, timeout_seconds)

    async def wait_async(self, known_wakes: int, timeout_seconds: float) -> None:
        """Suspend this coroutine until a wake after `known_wakes`, or the timeout."""
        loop = asyncio.get_running_loop()
        sleeper = loop.create_future()
        with self._condition:
            if self._wakes > known_wakes:
                return
            self._sleepers.add(sleeper)
        alarm = loop.call_later(timeout_seconds, _wake, (sleeper,))
        try:
            await sleeper
        finally:
            alarm.cancel()
            with self._condition:
                self._sleepers.discard(sleeper)


def wake_all(wakeups: Iterable[Wakeup]) -> None:
    """Wake several at once, so that the coroutines of an event loop run in the same turn.

    Their next requests then arrive together. Thread-safe.
    """
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]](list)
    for wakeup in wakeups:
        for sleeper in wakeup._wake_sleepers():
            by_loop[sleeper.get_loop()].append(sleeper)
    for loop, sleepers in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_wake, sleepers)


def _wake(sleepers: Iterable[asyncio.Future[None]]) -> None:
    for sleeper in sleepers:
        if not sleeper.done():
            sleeper.set_result(None)
