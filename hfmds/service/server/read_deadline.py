"""How long a call waits for its caller: for a message to come, or for one to be taken."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Patience:
    """Around a call: cancels it in a wait that is too long.

    One timer is for all waits of the call. It is not moved at each of them, but looks when it
    rings: most waits are over at once, and to set a timer takes longer than to read a message.
    """

    __slots__ = ("_loop", "_lost", "_task", "_timer", "_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._until: float | None = None  # of the wait that is under way
        self._lost = False

    def __enter__(self) -> Patience:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._until = None
        if self._timer is not None:
            self._timer.cancel()

    def time(self) -> float:
        """Now, on the clock that `begin` goes by."""
        return self._loop.time()

    def begin(self, until: float) -> None:
        """A wait begins that may last till then."""
        self._until = until
        if self._timer is None or self._timer.when() > until:
            self._set(until)

    def end(self) -> None:
        """It is over."""
        self._until = None

    def was_lost(self) -> bool:
        """When a wait was cancelled: whether that was done here, and by nobody else."""
        # Somebody else's request to cancel would still stand.
        return self._lost and self._task is not None and self._task.uncancel() == 0

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._until is None or self._task is None:
            return
        if self._until > self._loop.time():
            self._set(self._until)
        elif not self._task.cancelling():
            self._lost = True
            self._task.cancel()
