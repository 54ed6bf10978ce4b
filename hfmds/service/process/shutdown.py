"""The end of a process: all its ports stop together, within one grace time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class Shutdown:
    """Stops everything that was added, once, within the grace.

    A supervisor kills the process after a time of its own. Ports that stop one after the other,
    each with its own grace, could take longer than that.
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
        """Add a stop function, which gets the seconds that it may take."""
        self._stops.append(stop)

    async def stop(self) -> None:
        """Stop everything. Further calls wait for the same end."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await self._stopping

    async def _stop(self) -> None:
        seconds = self.left_seconds()
        await asyncio.gather(*(stop(seconds) for stop in self._stops))

    def left_seconds(self) -> float:
        """Return the rest of the grace, which begins at the first call of this method."""
        now = self._monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._grace_seconds
        return max(0.0, self._ends_at - now)
