"""Wakes threads and coroutines that wait for a change, without polling."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable


class Bell:
    """Counts its rings. A waiter names the last ring that it knows, so it misses none."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rings = 0
        self._sleepers: set[asyncio.Future[None]] = set()

    @property
    def rings(self) -> int:
        """How often the bell rang. Read it before you look at the state that you wait for."""
        return self._rings

    def ring(self) -> None:
        """Wake all waiters. Thread-safe."""
        ring_all([self])

    def _ring(self) -> set[asyncio.Future[None]]:
        """Wake the waiting threads; return the waiting coroutines, which the caller wakes."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()
            sleepers, self._sleepers = self._sleepers, set()
        return sleepers

    def wait(self, known_rings: int, timeout_seconds: float) -> None:
        """Block this thread until a ring after `known_rings`, or the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: self._rings > known_rings, timeout_seconds)

    async def wait_async(self, known_rings: int, timeout_seconds: float) -> None:
        """Suspend this coroutine until a ring after `known_rings`, or the timeout."""
        loop = asyncio.get_running_loop()
        sleeper = loop.create_future()
        with self._condition:
            if self._rings > known_rings:
                return
            self._sleepers.add(sleeper)
        alarm = loop.call_later(timeout_seconds, _wake, (sleeper,))
        try:
            await sleeper
        finally:
            alarm.cancel()
            with self._condition:
                self._sleepers.discard(sleeper)


def ring_all(bells: Iterable[Bell]) -> None:
    """Ring several bells, so that the coroutines of an event loop go on in the same turn.

    Their next requests then arrive together. Thread-safe.
    """
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]](list)
    for bell in bells:
        for sleeper in bell._ring():
            by_loop[sleeper.get_loop()].append(sleeper)
    for loop, sleepers in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_wake, sleepers)


def _wake(sleepers: Iterable[asyncio.Future[None]]) -> None:
    for sleeper in sleepers:
        if not sleeper.done():
            sleeper.set_result(None)
