"""How a device bears with a peer that is away: it tries again, for ever, and says so once.

Devices outlive their services: a coordinator that is redeployed, or a laptop lid that is closed,
must cost nothing but time, and must not fill the log.
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

_LEAST_TOLD_SECONDS = 0.1  # a peer that says "at once" must not make a device spin
_LONGEST_TOLD_SECONDS = 3600.0  # whatever it says, a device is not lost for longer


def bounded_pause(told_seconds: float) -> float:
    """How long to pause when a peer told so long, which may be no number."""
    if told_seconds > _LEAST_TOLD_SECONDS:
        return min(told_seconds, _LONGEST_TOLD_SECONDS)
    return _LEAST_TOLD_SECONDS


class Retry:
    """Repeats calls to one peer until it answers. Calls may overlap; an outage is one outage."""

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
        """Why the peer cannot be worked with now; None when it answered the last call."""
        return self._trouble

    async def call(self, method: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer, whenever it comes; an error that trying again would not cure is raised."""
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
            # The peer is there, and has given every caller a time of its own.
            return bounded_pause(error.retry_after_seconds)
        # Drawn evenly: a fleet that lost its coordinator together must not return together.
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
    # The bare base class is a fault inside the server (INTERNAL), which somebody will mend.
    return isinstance(error, Unavailable) or type(error) is HfmdsError
