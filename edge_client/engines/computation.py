"""Runs an engine in a thread, so that the event loop goes on renewing leases meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from edge_client.console import describe_step
from hfmds.algorithm.local_work import Progress

log = logging.getLogger(__name__)

R = TypeVar("R")


class _Abandoned(Exception):
    """Ends a computation from within: nobody wants its result any more."""


class Observer(Protocol):
    """Looks on while something is computed."""

    def show(self, text: str) -> None:
        """Hear, after each step, how far it is."""

    def check(self, what: str) -> None:
        """End the computation by an error, if it must not go on."""


class _NoObserver:
    def show(self, text: str) -> None: ...

    def check(self, what: str) -> None: ...


NO_OBSERVER: Observer = _NoObserver()


async def compute(
    what: str,
    work: Callable[[Progress], R],
    *,
    observer: Observer = NO_OBSERVER,
    tell_every_seconds: float = 10.0,
) -> R:
    """`work(progress)` in a thread. Cancelling this ends the work at its next step.

    It returns only when the thread is done: two computations never compete for the processor.
    """
    abandoned = threading.Event()
    started = told = time.monotonic()

    def progress(done: int, steps: int) -> None:
        nonlocal told
        if abandoned.is_set():
            raise _Abandoned
        observer.check(what)
        now = time.monotonic()
        text = describe_step(what, done, steps, now - started)
        observer.show(text)
        if now - told >= tell_every_seconds:
            told = now
            log.info("%s", text)

    running = asyncio.ensure_future(asyncio.to_thread(work, progress))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        abandoned.set()
        await asyncio.gather(running, return_exceptions=True)
        raise
