"""The end of a process: all its ports stop together, and all that ends it shares one time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class Shutdown:
    """Stops what was added to it once, within the grace from then on.

    A supervisor kills after a time of its own: what stopped one after the other, each with a grace
    of its own, could take longer.
    """

    def __init__(
        self, grace_seconds: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._grace_seconds = grace_seconds
        self._monotonic = monotonic
        self._stops: list[Callable[[float], Awaitable[None]]] = []
        self._ends_at: float | None = None
        self._stopping: asyncio.Task[None] | None = None

    def add(self, stop: Callable[[float], Awaitable[None]]) -> None:
        """`stop` will be given the seconds that it may take."""
        self._stops.append(stop)

    async def stop(self) -> None:
        """Stop all; whoever else asks for it waits for the same end."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await self._stopping

    async def _stop(self) -> None:
        left = self.left_seconds()
        await asyncio.gather(*(stop(left) for stop in self._stops))

    def left_seconds(self) -> float:
        """What is left of the grace, which begins when it is asked for first."""
        now = self._monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._grace_seconds
        return max(0.0, self._ends_at - now)
