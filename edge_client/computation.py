"""Runs an engine in a thread, so that the event loop goes on renewing leases meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hfmds.algorithm.engine import Progress

log = logging.getLogger(__name__)

R = TypeVar("R")


class _Abandoned(Exception):
    """Ends a computation from within: nobody wants its result any more."""


async def compute(
    what: str, work: Callable[[Progress], R], *, tell_every_seconds: float = 10.0
) -> R:
    """`work(progress)` in a thread. Cancelling this ends the work at its next step.

    It returns only when the thread is done: two computations never compete for the processor.
    """
    abandoned = threading.Event()
    told = time.monotonic()

    def progress(done: int, steps: int) -> None:
        nonlocal told
        if abandoned.is_set():
            raise _Abandoned
        if time.monotonic() - told >= tell_every_seconds:
            told = time.monotonic()
            log.info("%s: step %d of %d (%d %%)", what, done, steps, 100 * done // steps)

    running = asyncio.ensure_future(asyncio.to_thread(work, progress))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        abandoned.set()
        await asyncio.gather(running, return_exceptions=True)
        raise
