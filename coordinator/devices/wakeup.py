"""Wakes whoever waits for a change, thread or coroutine, without polling."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable


class Bell:
    """Counts its rings; a waiter names the last ring it knows of, so none is ever missed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rings = 0
        self._sleepers: set[asyncio.Future[None]] = set()

    @property
    def rings(self) -> int:
        """How often it rang; read it before looking at the state one waits for."""
        return self._rings

    def ring(self) -> None:
        """Wake everyone. May be called from any thread."""
        ring_all([self])

    def _ring(self) -> set[asyncio.Future[None]]:
        """Wake the threads that wait; the coroutines that are to be woken."""
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
    """Ring them, such that all coroutines of an event loop go on in the same turn of it.

    What they ask for then comes together, and not one after the other. May be called from any
    thread.
    """
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]](list)
    for bell in bells:
        for sleeper in bell._ring():
            by_loop[sleeper.get_loop()].append(sleeper)
    for loop, sleepers in by_loop.items():
        if not loop.is_closed():  # else nobody is there to wake
            loop.call_soon_threadsafe(_wake, sleepers)


def _wake(sleepers: Iterable[asyncio.Future[None]]) -> None:
    for sleeper in sleepers:
        if not sleeper.done():
            sleeper.set_result(None)
