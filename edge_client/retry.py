"""Repeats calls to a peer that is away, for ever, and logs the outage once.

Devices outlive their services. A redeployed coordinator or a closed laptop lid costs time and
nothing else, and it does not fill the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.client.channel import Backoff
from hfmds.service.client.peer import Peer

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_MIN_PAUSE_SECONDS = 0.1  # a peer that says "at once" must not make a device spin
_MAX_PAUSE_SECONDS = 3600.0  # a peer cannot send a device away for longer


def bounded_pause(seconds: float) -> float:
    """Bound the pause that a peer asks for; it may be NaN."""
    if seconds > _MIN_PAUSE_SECONDS:
        return min(seconds, _MAX_PAUSE_SECONDS)
    return _MIN_PAUSE_SECONDS


class Retry:
    """Repeats calls to one peer until it answers. Overlapping calls share an outage."""

    def __init__(
        self,
        peer: Peer,
        backoff: Backoff,
        *,
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._peer = peer
        self._backoff = backoff
        self._rng = rng
        self._sleep = sleep
        self._on_change = on_change
        self._away = False
        self._trouble: str | None = f"{peer} was not reached yet"

    def trouble(self) -> str | None:
        """Return why the peer is away; None if it answered the last call."""
        return self._trouble

    async def call(self, method: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the answer, however late; raise errors that a repetition would not cure."""
        failures = 0
        while True:
            try:
                answer = await method(*args, **kwargs)
            except HfmdsError as error:
                if not _will_pass(error):
                    self._answered()
                    raise
                failures += 1
                self._missed(error)
                pause_seconds = self._pause_seconds(error, failures)
            else:
                self._answered()
                return answer
            await self._sleep(pause_seconds)

    def _pause_seconds(self, error: HfmdsError, failures: int) -> float:
        if isinstance(error, Unavailable) and error.retry_after_seconds is not None:
            # The peer answers and gives every caller its own time.
            return bounded_pause(error.retry_after_seconds)
        # Drawn evenly, so that a fleet that lost its coordinator does not return all at once.
        return self._rng.uniform(0, self._backoff.ceiling(failures))

    def _missed(self, error: HfmdsError) -> None:
        self._trouble = str(error)
        if self._away:
            log.debug("still away: %s", error)
            return
        self._away = True
        self._on_change(False)
        log.warning("%s (trying until it answers)", error, extra={"setting": self._peer.setting})

    def _answered(self) -> None:
        if self._away:
            log.info("%s answers again", self._peer)
        if self._trouble is not None:
            self._on_change(True)
        self._away = False
        self._trouble = None


def _will_pass(error: HfmdsError) -> bool:
    # The bare base class is a fault inside the server (INTERNAL), which its operators mend.
    return isinstance(error, Unavailable) or type(error) is HfmdsError
