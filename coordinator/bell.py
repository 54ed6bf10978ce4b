"""Wakes whoever waits for a change, thread or coroutine, without polling."""

from __future__ import annotations

import asyncio
import threading


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
        with self._condition:
            self._rings += 1
            self._condition.notify_all()
            sleepers, self._sleepers = self._sleepers, set()
        for sleeper in sleepers:
            if not sleeper.get_loop().is_closed():  # else nobody is there to wake
                sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)

    def wait(self, known_rings: int, timeout_seconds: float) -> None:
        """Block this thread until a ring after `known_rings`, or the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: self._rings > known_rings, timeout_seconds)

    async def wait_async(self, known_rings: int, timeout_seconds: float) -> None:
        """Suspend this coroutine until a ring after `known_rings`, or the timeout."""
        sleeper = asyncio.get_running_loop().create_future()
        with self._condition:
            if self._rings > known_rings:
                return
            self._sleepers.add(sleeper)
        try:
            await asyncio.wait((sleeper,), timeout=timeout_seconds)
        finally:
            with self._condition:
                self._sleepers.discard(sleeper)
            sleeper.cancel()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
